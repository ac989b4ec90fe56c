"""A tour of the Python API on built-in data, in under a minute: `python examples/python_tour.py [DIRECTORY]`.

Written like a notebook: each part can be pasted into a cell.
"""

# %% A teacher for two tasks, from the encoder that is installed with mtkd
import sys
import tempfile

import torch

import mtkd

runs = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="mtkd-tour-")
tasks = ["sst2", "rte"]
rows = {"data": "pocket", "tasks": tasks, "limit": 200, "eval_limit": 60}
short = {"max_length": 32, "train.precision": "auto"}  # bf16 if the device supports it
teacher = mtkd.refine("minilm", **rows, out=f"{runs}/teacher", epochs=2, lr=3e-4, batch=16, settings=short)
print("teacher:", {name: round(score.primary, 3) for name, score in teacher.scores.items()})


# %% A callback that follows training
class Follow(mtkd.Callback):
    """Remembers the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, state, control) -> None:
        self.losses.append(state.loss)


# %% A student of a recipe, with some of its settings changed
follow = Follow()
student = mtkd.distill(
    "layerwise-3",
    **rows,
    teacher=teacher,
    out=f"{runs}/student",
    epochs=2,
    lr=3e-4,
    batch=16,
    settings={"student.max_length": 32, "train.precision": "auto", "teacher.precision": "auto"},
    callbacks=[follow],
)
print("student:", {name: round(score.primary, 3) for name, score in student.scores.items()})
print(f"{len(follow.losses)} steps, loss {follow.losses[0]:.2f} -> {follow.losses[-1]:.2f}")


# %% A loss of your own, on a task of your own, from rows in memory
class Cosine(mtkd.LossTerm):
    """1 - cosine of the logits of student and teacher."""

    student_need = teacher_need = mtkd.LOGITS

    def forward(self, inputs: mtkd.TermInput) -> torch.Tensor:
        similarity = torch.nn.functional.cosine_similarity(
            inputs.student_outputs.logits, inputs.teacher_outputs.logits
        )
        return (1 - similarity).sum()


moods = [
    {"text": f"{word} {end}", "label": label}
    for label, words in enumerate((("awful", "dull", "sad", "poor"), ("great", "fine", "happy", "warm")))
    for word in words
    for end in ("film", "book", "play", "song", "meal", "day")
]
mood = mtkd.Task(name="mood", kind="classify", columns=("text",), labels=("negative", "positive"))
data = {"mood": {"train": moods, "validation": moods[::3]}}
mood_teacher = mtkd.refine("minilm", data=data, tasks=mood, out=f"{runs}/mood-teacher", epochs=2, batch=8)
mood_student = mtkd.distill(
    "layerwise-3",
    teacher=mood_teacher,
    data=data,
    tasks=mood,
    out=f"{runs}/mood-student",
    losses={"cosine": Cosine(), "labels": mtkd.losses.Labels()},
    epochs=3,
    lr=3e-4,
    batch=8,
)

# %% Use it
model = mtkd.load(mood_student.path)
texts = ["a great play", "a dull day"]
for text, row in zip(texts, model.predict("mood", texts), strict=True):
    print(text, "->", row["prediction"], row["probabilities"])
print(model.evaluate(data, ["mood"])["mood"].metrics)
