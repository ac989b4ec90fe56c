"""A tour of the Python API on built-in data, in under a minute: `python examples/python_tour.py [DIRECTORY]`.

Written like a notebook: each part can be pasted into a cell.
"""

# %% A teacher for two tasks, from the encoder that is installed with mtkd
import sys
import tempfile

import torch

import mtkd

runs = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="mtkd-tour-")
tasks = ["rte", "sst2"]
short = {"limit": 96, "lr": 1e-4}
teacher = mtkd.refine("minilm", data="pocket", tasks=tasks, out=f"{runs}/teacher", epochs=2, **short)
print({name: round(score.primary, 3) for name, score in teacher.scores.items()})


# %% A callback that follows training
class Follow(mtkd.Callback):
    """Remembers the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, state, control) -> None:
        self.losses.append(state.loss)


# %% A student of a recipe, with some of its settings changed
follow = Follow()
small = {"student.bilstm.hidden_size": 32, "student.embeddings": "teacher"}
student = mtkd.distill(
    "mkd-lstm",
    teacher=teacher,
    data="pocket",
    tasks=tasks,
    out=f"{runs}/student",
    limit=96,
    epochs=4,
    lr=2e-3,
    settings=small,
    callbacks=[follow],
)
print(f"{len(follow.losses)} steps, loss {follow.losses[0]:.2f} -> {follow.losses[-1]:.2f}")


# %% A loss of your own, on a task of your own, from rows in memory
class Cosine(mtkd.LossTerm):
    """1 - cosine of the logits of student and teacher."""

    student_need = teacher_need = mtkd.LOGITS

    def forward(self, inputs: mtkd.TermInput) -> torch.Tensor:
        similarity = torch.nn.functional.cosine_similarity(
            inputs.student.logits, inputs.teacher_signal.logits
        )
        return (1 - similarity).sum()


rows = [
    {"text": f"{word} {end}", "label": label}
    for label, words in enumerate((("awful", "dull", "sad", "poor"), ("great", "fine", "happy", "warm")))
    for word in words
    for end in ("film", "book", "play", "song", "meal", "day")
]
mood = mtkd.Task(name="mood", kind="classify", columns=("text",), labels=("negative", "positive"))
data = {"mood": {"train": rows, "validation": rows[::3]}}
mood_teacher = mtkd.refine("minilm", data=data, tasks=mood, out=f"{runs}/mood-teacher", epochs=5, lr=1e-4)
mine = mtkd.distill(
    "mkd-transformer",
    teacher=mood_teacher,
    data=data,
    tasks=mood,
    out=f"{runs}/mood-student",
    losses={"cosine": Cosine(), "labels": mtkd.losses.Labels()},
    epochs=5,
    lr=1e-4,
)

# %% Use it
model = mtkd.load(f"{runs}/mood-student")
texts = ["a great play", "a dull day"]
for text, answer in zip(texts, model.predict("mood", texts), strict=True):
    print(text, "->", answer["prediction"], answer["probabilities"])
print(model.evaluate(data, ["mood"])["mood"].metrics)
