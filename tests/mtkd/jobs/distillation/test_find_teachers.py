"""Distillation from teachers that users already have: checkpoints, several teachers, soft labels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import softmax
from small_students import SMALL_LSTM
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import mtkd as api
from mtkd.jobs.model_origin import pretrained_encoder
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.group import Member, TeacherGroup
from mtkd.teachers.label_lists import label_list
from mtkd.teachers.teacher_names import describe_teachers, parse_labels, teachers_by_task
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.time_trial import trial_run
from tasks.common.errors import MtkdWarning, UserError
from tasks.data.loading import load_rows
from tasks.data.sources import PocketSource
from tasks.task_names import resolve
from tasks.tokens.encoding import Encoded

TINYBERT = {
    "student.transformer.layers": 1,
    "student.transformer.hidden_size": 8,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "student.transformer.init": "random",
    "student.max_length": 24,
    "train.batch_size": 16,
}
SHORT = {"data": "pocket", "limit": 32, "eval_limit": 16, "epochs": 1}
NEGATIVE_LAST = {"id2label": {0: "POSITIVE", 1: "NEGATIVE"}}
ENTAILED = {"id2label": {0: "entailment", 1: "not entailment"}}
SST2, RTE = resolve("sst2")[0], resolve("rte")[0]

pytestmark = pytest.mark.filterwarnings("ignore::tasks.common.errors.MtkdWarning")


@pytest.fixture
def learned_logits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """The targets of each student: task -> logits of the training rows."""
    from mtkd.teachers.teacher_sources import CachedLogits

    found: list[dict[str, np.ndarray]] = []

    def kept(logits: dict[str, Any]) -> CachedLogits:
        found.append({name: rows[np.arange(len(rows))] for name, rows in logits.items()})
        return CachedLogits(logits)

    monkeypatch.setattr("mtkd.jobs.distillation.task_teachers.CachedLogits", kept)
    return found


def distill_from(out: Path, teacher: Any, tasks: Any = ("sst2",), **more: Any) -> api.Model:
    settings = SMALL_LSTM | more.pop("settings", {})
    tasks = list(tasks) if isinstance(tasks, tuple) else tasks
    return api.distill("mkd-lstm", teacher=teacher, tasks=tasks, out=out, settings=settings, **SHORT | more)


def plain_logits(place: Path, name: str) -> np.ndarray:
    """Return a checkpoint's logits for the pocket training rows, computed with transformers alone."""
    rows = load_rows(PocketSource(), resolve(name)[0], "train", 32)
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    tokeniser = AutoTokenizer.from_pretrained(place)
    texts = [column.to_pylist() for column in rows.texts]
    with torch.no_grad():
        return model(**tokeniser(*texts, truncation=True, padding=True, return_tensors="pt")).logits.numpy()


def test_each_task_can_have_a_checkpoint_with_its_own_tokeniser(
    save_checkpoint: Callable[..., Path], tmp_path: Path, mtkd: Any, learned_logits: list
) -> None:
    first, second = save_checkpoint("Bert", **NEGATIVE_LAST), save_checkpoint("Roberta", **ENTAILED)
    sets = [word for key, value in SMALL_LSTM.items() for word in ("--set", f"{key}={value}")]
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "sst2,rte", *sets, "--epochs", 1)
    words += ("--limit", 32, "--eval-limit", 16, "--teacher", f"sst2={first},rte={second}")
    done = mtkd(*words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    expected = {"sst2": plain_logits(first, "sst2")[:, ::-1], "rte": plain_logits(second, "rte")}
    assert len(learned_logits) == 1 and learned_logits[0].keys() == expected.keys()
    for name, logits in expected.items():
        np.testing.assert_allclose(learned_logits[0][name], logits, atol=2e-5)
    files = sorted((tmp_path / "run").glob("logits-*/*/*.safetensors"))
    assert [file.parent.name.split("-")[0] for file in files] in (["sst2", "rte"], ["rte", "sst2"])
    for file in files:  # computed once, and kept
        name = file.parent.name.split("-")[0]
        assert np.array_equal(load_file(file)["logits"], learned_logits[0][name])
    student = MultiTaskModel.load(tmp_path / "run")
    assert student.tokeniser.digest == api.load("minilm").module.tokeniser.digest, "the first teacher's"
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["identity"]["teacher"] == {"sst2": [str(first)], "rte": [str(second)]}
    assert not list(first.glob("logits*")), "a user's directory is not written to"


@pytest.mark.parametrize("average", ["probabilities", "logits"])
def test_several_teachers_of_a_task_are_averaged(
    average: str, save_checkpoint: Callable[..., Path], tmp_path: Path, learned_logits: list
) -> None:
    places = [save_checkpoint("Bert", **NEGATIVE_LAST), save_checkpoint("Roberta", **NEGATIVE_LAST)]
    both = [plain_logits(place, "sst2")[:, ::-1] for place in places]
    distill_from(tmp_path / "run", {"sst2": places}, settings={"teacher.average": average})
    mean = np.mean(both, 0) if average == "logits" else np.log(np.mean(softmax(both, -1), 0))
    np.testing.assert_allclose(learned_logits[0]["sst2"], mean, atol=2e-5)
    distill_from(tmp_path / "again", [str(place) for place in places], settings={"teacher.average": average})
    assert np.array_equal(learned_logits[1]["sst2"], learned_logits[0]["sst2"])


def test_runs_and_checkpoints_can_be_mixed(
    save_checkpoint: Callable[..., Path], tiny_teacher: Path, tmp_path: Path, learned_logits: list
) -> None:
    place = save_checkpoint("Roberta", **NEGATIVE_LAST)
    distill_from(tmp_path / "alone", tiny_teacher, ("sst2", "rte"))
    distill_from(
        tmp_path / "mixed", {"rte": api.load(tiny_teacher), "sst2": [place, tiny_teacher]}, ("sst2", "rte")
    )
    assert np.array_equal(learned_logits[1]["rte"], learned_logits[0]["rte"])
    both = [plain_logits(place, "sst2")[:, ::-1], learned_logits[0]["sst2"]]
    np.testing.assert_allclose(learned_logits[1]["sst2"], np.log(np.mean(softmax(both, -1), 0)), atol=2e-5)


def test_one_run_named_for_every_task_is_treated_as_one_teacher(
    tiny_teacher: Path, tmp_path: Path, learned_logits: list
) -> None:
    tasks = [SST2, RTE]
    alone = find_teachers(str(tiny_teacher), tasks, heads=True)
    named = find_teachers(f"sst2={tiny_teacher},rte={tiny_teacher}", tasks, heads=True)
    assert alone == named and not isinstance(named, TeacherGroup)


def test_models_and_pipelines_in_memory_can_be_teachers(
    save_checkpoint: Callable[..., Path], tmp_path: Path, learned_logits: list
) -> None:
    place = save_checkpoint("Bert", **NEGATIVE_LAST)
    model = AutoModelForSequenceClassification.from_pretrained(place)
    tokeniser = AutoTokenizer.from_pretrained(place)
    distill_from(tmp_path / "name", place)
    distill_from(tmp_path / "pair", (model, tokeniser))
    distill_from(
        tmp_path / "pipeline", {"sst2": pipeline("text-classification", model=model, tokenizer=tokeniser)}
    )
    expected = plain_logits(place, "sst2")[:, ::-1]
    for lesson in learned_logits:
        np.testing.assert_allclose(lesson["sst2"], expected, atol=2e-5)
    assert len(learned_logits) == 3


def test_hidden_states_of_checkpoints_can_be_distilled(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    first = save_checkpoint("Bert", **NEGATIVE_LAST)
    second = save_checkpoint("Bert", "other", seed=1, **ENTAILED)
    given: dict[str, Any] = {"settings": TINYBERT, **SHORT}
    api.distill("tinybert-4", teacher=first, tasks="sst2", out=tmp_path / "one", **given)
    teacher = {"sst2": first, "rte": second}
    student = api.distill("tinybert-4", teacher=teacher, tasks=["sst2", "rte"], out=tmp_path / "two", **given)
    assert set(student.scores) == {"sst2", "rte"}


@pytest.mark.parametrize("order", [("sst2", "rte"), ("rte", "sst2")])
def test_hidden_states_can_come_from_a_bi_encoder_and_a_single_text_teacher(
    tiny_encoder: Path, tmp_path: Path, order: tuple[str, str]
) -> None:
    """A single text is the same input for both, so a bi-encoder student can learn from both."""
    data = {"data": "pocket", "limit": 16, "eval_limit": 16}
    teachers: dict[str, Any] = {
        name: api.refine(
            str(tiny_encoder), tasks=name, out=tmp_path / name, settings={"pairs": pairs}, epochs=1, **data
        )
        for name, pairs in (("sst2", "cross-encoder"), ("rte", "bi-encoder"))
    }
    teacher = {name: teachers[name].path for name in order}
    student = api.distill(
        "tinybert-4", teacher=teacher, tasks=list(order), out=tmp_path / "run",
        settings=TINYBERT, **SHORT,
    )  # fmt: skip
    assert set(student.scores) == {"sst2", "rte"}
    assert student.module.encoder.config.pairs == "bi-encoder"


def test_a_student_of_a_model_in_memory_starts_from_its_weights(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    place = save_checkpoint("Bert", **NEGATIVE_LAST)
    model = AutoModelForSequenceClassification.from_pretrained(place)
    settings = {"student.transformer.layers": 1, "student.max_length": 24, "train.batch_size": 16}
    given: dict[str, Any] = {"settings": settings, "tasks": "sst2", **SHORT}
    named = api.distill("mkd-transformer", teacher=place, out=tmp_path / "named", **given)
    pair = (model, AutoTokenizer.from_pretrained(place))
    passed = api.distill("mkd-transformer", teacher=pair, out=tmp_path / "passed", **given)
    for name, weight in named.module.state_dict().items():
        torch.testing.assert_close(passed.module.state_dict()[name], weight)


def test_a_static_student_starts_from_a_checkpoint(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    place = save_checkpoint("Roberta", **NEGATIVE_LAST)
    settings = {"student.head_hidden_size": 8, "student.max_length": 24, "student.static.width": 4}
    student = api.distill(
        "static", teacher=place, tasks="sst2", out=tmp_path / "run", settings=settings, **SHORT
    )
    assert student.module.tokeniser.vocab_size == 400


def test_a_checkpoint_teaches_spans(
    save_checkpoint: Callable[..., Path], tmp_path: Path, learned_logits: list
) -> None:
    place = save_checkpoint("Bert", head="ForQuestionAnswering")
    settings = {
        **{key: value for key, value in TINYBERT.items() if key.startswith("student.transformer")},
        **{
            "student.max_length": 48,
            "student.stride": 8,
            "student.head_hidden_size": 0,
            "train.batch_size": 16,
        },
    }
    given: dict[str, Any] = {"settings": settings, **SHORT, "limit": 8}
    api.distill("mkd-transformer", teacher=place, tasks="squad", out=tmp_path / "run", **given)
    model = find_teachers(str(place), resolve("squad"), heads=True).load(48)  # type: ignore[union-attr]
    model.info.stride = 8
    rows = model.reader.rows(load_rows(PocketSource(), resolve("squad")[0], "train", 8))
    expected = predict_logits(model, resolve("squad")[0], Encoded.encode(rows, model.tokeniser))
    np.testing.assert_allclose(learned_logits[0]["squad"], expected, atol=2e-5)


def test_losses_on_hidden_states_reject_incompatible_teachers(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    bert, other = save_checkpoint("Bert", **NEGATIVE_LAST), save_checkpoint("Roberta", **ENTAILED)
    larger = save_checkpoint("Bert", "larger", layers=3, **ENTAILED)
    given: dict[str, Any] = {"settings": TINYBERT, "out": tmp_path / "run", **SHORT}
    with pytest.raises(UserError, match="the teachers have different tokenisers"):
        api.distill("tinybert-4", teacher={"sst2": bert, "rte": other}, tasks=["sst2", "rte"], **given)
    with pytest.raises(UserError, match="only logits can be averaged"):
        api.distill("tinybert-4", teacher={"rte": [larger, other]}, tasks="rte", **given)
    with pytest.raises(UserError, match=r"Bert and .*larger differ: layers 2 and 3"):
        api.distill("tinybert-4", teacher={"sst2": bert, "rte": larger}, tasks=["sst2", "rte"], **given)
    word = TINYBERT | {"student.vocabulary": "word"}
    with pytest.raises(UserError, match="compares teacher and student token by token"):
        api.distill("tinybert-4", teacher=bert, tasks="sst2", **given | {"settings": word})
    assert not (tmp_path / "run").exists()


def test_a_student_with_another_vocabulary_is_rejected_where_tokens_are_compared(
    save_checkpoint: Callable[..., Path], tiny_teacher: Path, tmp_path: Path
) -> None:
    roberta = save_checkpoint("Roberta", layers=3, **NEGATIVE_LAST)
    student = MultiTaskModel.load(tiny_teacher)
    student.set_max_length(24)
    with pytest.raises(UserError, match=r"token by token, but on sst2\s+the\s+teacher\s+reads .* 400 ids"):
        api.distill(
            "tinybert-4", teacher=roberta, student=student, tasks="sst2", out=tmp_path / "run",
            **SHORT,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_wrong_output_order_stops_distillation_and_is_a_warning_in_evaluation(
    save_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtkd: Any
) -> None:
    """A checkpoint with correct predictions, but with its outputs in the order positive, negative."""
    place = save_checkpoint("Bert")

    def right(model: Any, task: Any, rows: Any, *rest: Any, **more: Any) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[1 - rows.labels.astype(int)][:, model._order]

    monkeypatch.setattr("mtkd.jobs.distillation.teacher_checks.validation_logits", right)
    monkeypatch.setattr("mtkd.jobs.evaluate.predict_logits", right)
    sets = [word for key, value in SMALL_LSTM.items() for word in ("--set", f"{key}={value}")]
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "sst2", *sets, "--epochs", 1]
    words += ["--limit", 32, "--eval-limit", 32, "--teacher", place, "--out", tmp_path / "run"]
    failed = mtkd(*words)
    printed = " ".join(failed.err.split())
    assert failed.code == 2 and "--teacher-labels sst2=positive,negative" in printed, failed.err
    assert not (tmp_path / "run").exists()
    with trial_run():  # an estimate predicts too few rows to judge the order
        assert mtkd(*words[:-1], tmp_path / "trial").code == 0
    order = ("--teacher-labels", "sst2=positive,negative")
    done = mtkd(*words, *order)
    assert done.code == 0, done.err
    evaluated = ("evaluate", "--model", place, "--data", "pocket", "--tasks", "sst2")
    for given, accuracy in (((), 0), (order, 1)):
        scored = mtkd(*evaluated, *given, "--json", tmp_path / "scores.json")
        assert scored.code == 0, scored.err
        found = json.loads((tmp_path / "scores.json").read_text())["scores"]["sst2/validation"]
        assert found["metrics"]["accuracy"] == accuracy
        printed = " ".join(scored.err.replace("│", " ").split())
        assert ("--teacher-labels sst2=positive,negative" in printed) == (not given), scored.err


def test_teachers_may_read_pairs_differently(save_checkpoint: Callable[..., Path]) -> None:
    place = save_checkpoint("Bert", **ENTAILED)
    teacher = CheckpointRef.of("cross", place, RTE)
    config = teacher.config.model_copy(update={"pairs": "bi-encoder"})
    (mrpc,) = resolve("mrpc")
    members = [
        Member(teacher, ("rte",)),
        Member(replace(teacher, name="bi", config=config), ("mrpc", "sst2")),
    ]
    group = TeacherGroup.of(members, [RTE, SST2, mrpc])
    assert isinstance(group, TeacherGroup)
    group.check_can_provide(OutputSpec(hidden=frozenset([1])))
    assert group.config.pairs == group.init_spec.teacher.pairs == ["mrpc"]
    with pytest.raises(UserError, match="encoders of the teachers cross and bi differ: the outputs"):
        group.check_can_provide(OutputSpec(pooled=True))


def test_an_assumed_label_order_is_a_warning(save_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.warns(MtkdWarning, match="does not name its outputs"):
        distill_from(tmp_path / "run", save_checkpoint("Bert"))


@pytest.mark.parametrize(
    ("teacher", "tasks", "parts"),
    [
        ("sst2={bert}", "sst2,rte", ["'rte' has no teacher", "`teacher={'rte': 'DIR'}`"]),
        ("sst2={bert},cola={bert}", "sst2", ["named for the task 'cola', which is not trained"]),
        ("{bert}", "sst2,rte", ["is for one task, but the run has sst2, rte"]),
        ("sst2={bert},sst2={three}", "sst2", ["3 outputs", "2 labels"]),
        ("sst2={bert},rte={bert}", "sst2,rte", ["POSITIVE, NEGATIVE", "entailment"]),
        ("sst2={bert},rte=none/such", "sst2,rte", ["there is no such directory"]),
        ("rte={run},cola={run}", "rte,cola", ["no head for the task 'cola'"]),
        ("rte={run},rte={run}/../{run.name}", "rte", ["is named twice for the task 'rte'"]),
    ],
)
def test_incompatible_teachers_are_rejected(
    teacher: str,
    tasks: str,
    parts: list[str],
    save_checkpoint: Callable[..., Path],
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    places = {
        "bert": save_checkpoint("Bert", **NEGATIVE_LAST),
        "three": save_checkpoint("Bert", "three", num_labels=3),
        "run": tiny_teacher,
    }
    with pytest.raises(UserError) as error:
        distill_from(tmp_path / "run", teacher.format(**places), tasks)
    assert all(part in str(error.value) for part in parts), error.value
    assert not (tmp_path / "run").exists()


def test_the_teacher_option_is_parsed(tiny_teacher: Path) -> None:
    assert teachers_by_task("DIR") == [(None, "DIR")]
    assert teachers_by_task("sst2=a,b,rte=c,sst2=d") == [("sst2", "a,b"), ("rte", "c"), ("sst2", "d")]
    assert teachers_by_task({"sst2": ["a", "b"], "rte": "c"}) == [("sst2", "a"), ("sst2", "b"), ("rte", "c")]
    two = f"{tiny_teacher},{tiny_teacher.parent}"
    with pytest.raises(UserError, match=f"(?s)2 directories for the task 'rte'.*rte={tiny_teacher},rte="):
        teachers_by_task(f"rte={two}")
    with pytest.raises(UserError, match=f"(?s)2 directories in one value.*TASK={tiny_teacher},TASK="):
        teachers_by_task(two)
    assert teachers_by_task(["sst2=a", "b"]) == [("sst2", "a"), (None, "b")]
    assert describe_teachers("DIR") == "DIR" and describe_teachers(None) is None
    assert describe_teachers(["sst2=a", "b"]) == {"sst2": ["a"], "all": ["b"]}
    assert parse_labels(["sst2=a, b", "rte=c,d"]) == {"sst2": ["a", "b"], "rte": ["c", "d"]}
    with pytest.raises(UserError, match="TASK=label"):
        parse_labels("a,b")
    with pytest.raises(UserError, match="cannot be an int"):
        teachers_by_task({"sst2": 3})
    with pytest.raises(UserError, match="is empty"):
        teachers_by_task({})
    for empty in ("sst2=a,sst2=", "", {"sst2": ["a", " "]}, ["sst2=a", "rte="]):
        with pytest.raises(UserError, match="`teacher` has an empty name"):
            teachers_by_task(empty)
    with pytest.raises(UserError, match="unknown task in `teacher_labels` 'cola'"):
        find_teachers(None, [SST2], True, ["cola=a,b"])
    with pytest.raises(UserError, match="not a transformers checkpoint"):
        find_teachers(str(tiny_teacher), [SST2], True, ["sst2=positive,negative"])


def test_labels_with_commas_are_given_as_a_json_list() -> None:
    given = ['x=["spam, or junk", "ham"]', "y=a, b"]
    assert parse_labels(given) == {"x": ["spam, or junk", "ham"], "y": ["a", "b"]}
    for labels in (["a", "b"], ["a, b", "c"], ["[a]", "b"], [" a", "b"]):
        assert parse_labels(f"x={label_list(labels)}") == {"x": labels}
    assert label_list(["a", "b c"]) == "a,b c"
    assert parse_labels({"x": "spam, ham", "y": ("a", "b")}) == {"x": ["spam", "ham"], "y": ["a", "b"]}
    with pytest.raises(UserError, match=r"is not valid JSON \(Expecting value") as refused:
        parse_labels("x=[spam, ham]")
    assert "single quotes" in str(refused.value.hint) and "TASK=label,label" in str(refused.value.expected)
    with pytest.raises(UserError, match="`teacher_labels='x=\\[1, 2\\]'` is not a list of strings"):
        parse_labels("x=[1, 2]")


def soft_rows(count: int, labels: bool) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        share = float(random.random())
        row = {"text": f"text {number} is {'good' if share > 0.5 else 'bad'}", "probs": [1 - share, share]}
        rows.append(row | ({"label": int(share > 0.5)} if labels else {}))
    return rows


MOOD = api.Task(name="mood", kind="classify", columns=("text",), labels=("bad", "good"), soft_labels="probs")


@pytest.mark.parametrize("labels", [True, False])
def test_soft_labels_need_no_teacher(labels: bool, tmp_path: Path, learned_logits: list) -> None:
    rows = soft_rows(32, labels)
    data = {"mood": {"train": rows, "validation": soft_rows(16, True)}}
    student = distill_from(tmp_path / "run", None, MOOD, data=data)
    expected = np.log([row["probs"] for row in rows])
    np.testing.assert_allclose(learned_logits[0]["mood"], expected, rtol=1e-5)
    assert set(student.scores) == {"mood"}
    again = distill_from(tmp_path / "run", None, MOOD, data=data)
    assert again.path == student.path and len(learned_logits) == 1, "the run is finished"


def test_labels_can_be_learned_together_with_soft_labels_or_a_checkpoint(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    data = {"mood": {"train": soft_rows(32, True), "validation": soft_rows(16, True)}}
    both = {"terms.labels.loss": "labels", "terms.labels.weight": 0.3}
    runs: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "soft": (None, MOOD, {"data": data}),
        "checkpoint": (save_checkpoint("Bert", **NEGATIVE_LAST), ("sst2",), {}),
    }

    for name, (teacher, tasks, more) in runs.items():
        student = distill_from(tmp_path / name, teacher, tasks, settings=both, **more)
        first = json.loads((student.path / "log.jsonl").read_text().splitlines()[0])
        assert first["loss/labels"] > 0.3, f"an untrained head ({name})"
        assert first["loss"] == pytest.approx(first["loss/logits"] + 0.3 * first["loss/labels"], rel=1e-4)


def test_training_on_labels_rejects_soft_labels(tiny_teacher: Path, tmp_path: Path) -> None:
    data = {"mood": {"train": soft_rows(8, False), "validation": soft_rows(8, True)}}
    given: dict[str, Any] = {"data": data, "tasks": MOOD, "out": tmp_path / "run"}
    message = "rows of 'mood' have only soft labels, but .* learns from labels"
    with pytest.raises(UserError, match=message):
        api.refine("minilm", **given)
    with pytest.raises(UserError, match=message):
        api.distill("mkd-lstm", teacher=tiny_teacher, settings={"supervision": "labels"}, **given)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_is_rejected_where_a_run_is_required(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    place = save_checkpoint("Bert", **NEGATIVE_LAST)
    with pytest.raises(UserError, match="is a transformers checkpoint, not an mtkd model"):
        api.export(place, out=tmp_path / "export")
    with pytest.raises(UserError, match=r"fine-tune it on your tasks: `mtkd\.refine\(encoder="):
        api.finetune(place, data="pocket", task="sst2", out=tmp_path / "run")


def test_soft_labels_and_teachers_can_be_mixed(
    save_checkpoint: Callable[..., Path], tmp_path: Path, learned_logits: list
) -> None:
    rows = soft_rows(32, True)
    mood = {"mood": {"train": rows, "validation": soft_rows(16, True)}}
    place = save_checkpoint("Roberta", **NEGATIVE_LAST)
    distill_from(tmp_path / "run", {"sst2": place}, ["sst2", MOOD], data=[mood, "pocket"])
    np.testing.assert_allclose(learned_logits[0]["mood"], np.log([row["probs"] for row in rows]), rtol=1e-5)
    np.testing.assert_allclose(learned_logits[0]["sst2"], plain_logits(place, "sst2")[:, ::-1], atol=2e-5)
    # a teacher that is named for the task comes first
    named = save_checkpoint("Bert", id2label={0: "good", 1: "bad"})
    distill_from(tmp_path / "named", {"mood": named}, MOOD, data=mood)
    assert not np.allclose(learned_logits[1]["mood"], learned_logits[0]["mood"])
    with pytest.raises(UserError, match="'sst2' has no teacher"):
        distill_from(tmp_path / "none", None, ["sst2", MOOD], data=[mood, "pocket"])
    with pytest.raises(UserError, match="compare more than logits, but the task 'mood'"):
        api.distill(
            "tinybert-4", teacher={"sst2": place}, tasks=["sst2", MOOD], out=tmp_path / "none",
            settings=TINYBERT, **SHORT | {"data": [mood, "pocket"]},
        )  # fmt: skip
    rows[3]["probs"] = [0.5, 0.4]
    with pytest.raises(UserError, match=r"memory:mood/train, row 3: column 'probs': .* sum to 0\.9"):
        distill_from(tmp_path / "none", None, MOOD, data=mood)
    assert not (tmp_path / "none").exists()


def test_a_checkpoint_can_be_evaluated(
    save_checkpoint: Callable[..., Path], mtkd: Any, tmp_path: Path
) -> None:
    place = save_checkpoint("Roberta", **NEGATIVE_LAST)
    done = mtkd(
        *("evaluate", "--model", place, "--data", "pocket", "--tasks", "sst2", "--split", "train"),
        *("--limit", 32, "--json", tmp_path / "scores.json"),
    )
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "scores.json").read_text())["scores"]["sst2/train"]["metrics"]["accuracy"]
    labels = load_rows(PocketSource(), SST2, "train", 32).labels
    expected = (plain_logits(place, "sst2")[:, ::-1].argmax(1) == labels).mean()
    assert found == pytest.approx(expected)
    failed = mtkd("evaluate", "--model", place, "--data", "pocket")
    assert failed.code == 2 and "--tasks NAME" in failed.err


def test_a_checkpoint_can_predict_a_file(
    save_checkpoint: Callable[..., Path], mtkd: Any, tmp_path: Path
) -> None:
    place, rows, out = save_checkpoint("Bert"), tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    texts = load_rows(PocketSource(), SST2, "train", 32).texts[0].to_pylist()
    rows.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
    words = ("predict", "--model", place, "--in", rows, "--out", out)
    for given, column in (((), 1), (("--teacher-labels", "sst2=positive,negative"), 0)):
        done = mtkd(*words, "--task", "sst2", *given)
        assert done.code == 0 and ("FIRST,SECOND" in "".join(done.err.split())) == (not given), done.err
        predictions = [json.loads(line)["prediction_id"] for line in out.read_text().splitlines()]
        assert predictions == (plain_logits(place, "sst2").argmax(1) == column).astype(int).tolist()
    refused = mtkd(*words)
    assert refused.code == 2 and "--task NAME" in refused.err


def test_a_checkpoint_is_evaluated_with_the_order_of_its_labels(
    save_checkpoint: Callable[..., Path], tiny_teacher: Path, mtkd: Any, tmp_path: Path
) -> None:
    place = save_checkpoint("Bert")  # its outputs are LABEL_0 and LABEL_1
    words = ("evaluate", "--data", "pocket", "--tasks", "sst2", "--split", "train", "--limit", 32)
    order = ("--teacher-labels", "sst2=positive,negative")
    labels = load_rows(PocketSource(), SST2, "train", 32).labels
    for given, column in (((), 1), (order, 0)):
        done = mtkd(*words, "--model", place, *given, "--json", tmp_path / "scores.json")
        assert done.code == 0, done.err
        scores = json.loads((tmp_path / "scores.json").read_text())["scores"]["sst2/train"]
        right = (plain_logits(place, "sst2").argmax(1) == column) == (labels == 1)
        assert scores["metrics"]["accuracy"] == pytest.approx(right.mean())
        shown = " ".join(done.err.replace("│", " ").split())
        assert ("pass --teacher-labels sst2=FIRST,SECOND" in shown) == (not given)
        assert "the teacher" not in shown
    refused = mtkd(*words, "--model", tiny_teacher, *order)
    assert refused.code == 2 and "--teacher-labels" in refused.err and "this model is not one" in refused.err
    with pytest.raises(UserError, match="this model is not one"):
        api.evaluate(api.load(tiny_teacher), "pocket", "sst2", teacher_labels={"sst2": ["a", "b"]})
    with pytest.raises(UserError, match="unknown task in `teacher_labels` 'rte'"):
        api.evaluate(place, "pocket", "sst2", teacher_labels={"rte": "a,b"})


def test_a_student_can_be_compared_with_its_checkpoint_teacher(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    place = save_checkpoint("Bert")
    student = distill_from(tmp_path / "run", place).module
    plain, reordered = (
        api.evaluate(tmp_path / "run", "pocket", against=place, limit=32, teacher_labels=labels)
        for labels in (None, {"sst2": ["positive", "negative"]})
    )
    assert list(student.tasks) == ["sst2"], "the checkpoint is scored on the tasks of the run"
    assert any("does not name its outputs" in text for text in plain.warnings)
    assert not any("does not name its outputs" in text for text in reordered.warnings)
    references = [found.differences[str(place)]["sst2"].reference for found in (plain, reordered)]
    assert sum(references) == pytest.approx(1), "the other order of two labels is right on the other rows"


def test_a_model_in_memory_is_evaluated_as_its_checkpoint_is(
    save_checkpoint: Callable[..., Path], tiny_teacher: Path
) -> None:
    place = save_checkpoint("Bert", **NEGATIVE_LAST)
    model = AutoModelForSequenceClassification.from_pretrained(place)
    pair = (model, AutoTokenizer.from_pretrained(place))
    given: dict[str, Any] = {"data": "pocket", "tasks": "sst2", "limit": 32}
    named = api.evaluate(place, **given, against=tiny_teacher)
    for passed in (pair, pipeline("text-classification", model=model, tokenizer=pair[1])):
        found = api.evaluate(passed, **given, against=tiny_teacher)
        assert found["sst2"].metrics == named["sst2"].metrics
    gap = named.differences[str(tiny_teacher)]["sst2"]
    for against in (api.load(tiny_teacher), tiny_teacher):
        other = api.evaluate(against, **given, against=pair).differences["BertForSequenceClassification"]
        assert other["sst2"].difference == pytest.approx(-gap.difference)
    with pytest.raises(UserError, match="BertForSequenceClassification is a transformers checkpoint"):
        api.evaluate(pair, "pocket")
    with pytest.raises(UserError, match="`model` cannot be"):
        api.evaluate((model, "tokeniser"), **given)
    with pytest.raises(UserError, match="the baselines need a pretrained encoder"):
        api.evaluate(pair, **given, baselines=True)


def test_the_head_of_a_checkpoint_cannot_be_copied(
    save_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"teacher": save_checkpoint("Bert", **NEGATIVE_LAST), "tasks": "sst2", **SHORT}
    sets = {"student.max_length": 24, "student.transformer.layers": 1}
    copied = sets | {"student.init_heads": "teacher"}
    with pytest.raises(UserError, match="no head for 'sst2' to copy") as refused:
        api.distill("layerwise-3", out=tmp_path / "run", settings=copied, **given)
    assert refused.value.hint == "use `student.init_heads=random`" and not (tmp_path / "run").exists()
    sets |= {"train.lr": 1e-12}  # the heads keep their initial weights
    losses = {}
    for heads in ("auto", "linear-probe", "random"):
        out = tmp_path / heads
        student = api.distill("layerwise-3", out=out, settings=sets | {"student.init_heads": heads}, **given)
        losses[heads] = student.scores["sst2"].loss
        message = "no suitable head for sst2: the student's head starts from a linear probe"
        assert (message in capsys.readouterr().err) == (heads == "auto")
    assert losses["auto"] == losses["linear-probe"] != losses["random"], "it starts from a linear probe"


def test_a_copied_head_predicts_the_labels_in_the_order_of_the_task(
    tiny_encoder: Path, write_task: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(place: str, labels: str) -> Path:
        rows = [{"text": f"row {n}", "label": labels[n % 3]} for n in range(12)]
        return write_task(tmp_path / place, "classify", labels, train=rows, validation=rows[:6])

    options: dict[str, Any] = {"out": tmp_path / "teacher", "epochs": 1}
    teacher = api.refine(str(tiny_encoder), tasks=write("abc", "abc"), **options)
    sets = {"student.transformer.layers": 1, "train.lr": 1e-12, "train.epochs": 1, "terms.logits.weight": 0}
    sets |= {"terms.labels": {"loss": "labels"}}  # the teacher's logits are not used

    def distil(labels: str, heads: str = "auto") -> api.Model:
        settings = sets | {"student.init_heads": heads}
        out = tmp_path / f"student-{labels}-{heads}"
        given: dict[str, Any] = {"teacher": teacher, "tasks": write(labels, labels), "settings": settings}
        return api.distill("layerwise-3", out=out, **given)

    copied = teacher.module.heads["topics"].state_dict()
    for heads in ("auto", "teacher"):
        head = distil("cab", heads).module.heads["topics"].state_dict()
        for key in ("output.weight", "output.bias"):
            assert torch.allclose(head[key], copied[key][[2, 0, 1]])
    distil("abx")
    assert "the teacher has no suitable head for topics" in capsys.readouterr().err
    with pytest.raises(UserError, match="the teacher's head for 'topics' predicts other labels: a, b, c"):
        distil("abx", "teacher")


def test_a_control_with_the_heads_of_the_teacher_causes_a_warning(tiny_teacher: Path, tmp_path: Path) -> None:
    sets = {"student.max_length": 24, "student.transformer.layers": 1, "supervision": "labels"}
    given: dict[str, Any] = {"teacher": tiny_teacher, "tasks": "rte", **SHORT}
    with pytest.warns(MtkdWarning, match="starts from the teacher's layers, so it is not a valid control"):
        api.distill("layerwise-3", out=tmp_path / "run", settings=sets, **given)


def test_the_encoder_of_a_relative_teacher_is_found_from_another_directory(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    for name in ("teacher", "student"):
        shutil.copytree(tiny_teacher, tmp_path / "job/runs" / name)
    student = tmp_path / "job/runs/student"
    (record,) = student.rglob("model.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"base": None}))
    (record.parent / "digests.json").unlink()
    run = json.loads((student / "run.json").read_text())
    run["identity"]["teacher"] = "runs/teacher"
    run.pop("check", None)
    (student / "run.json").write_text(json.dumps(run))
    found = pretrained_encoder(student)
    assert found is not None and found == pretrained_encoder(tiny_teacher)
