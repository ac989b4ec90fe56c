"""`import mtkd`: the public names, and functions compared with the command line and with each other."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

import mtkd
from mtkd.api import (
    augmentation,
    distillation,
    exporting,
    grid_runs,
    inference_timing,
    measurement,
    stores,
    training,
)
from mtkd.cli.main import cli
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS

SMALL = {
    "student.max_length": 24,
    "student.head_hidden_size": 8,
    "student.bilstm.hidden_size": 8,
    "student.bilstm.projection_size": 8,
    "student.bilstm.output_size": 8,
    "student.bilstm.embeddings": "teacher",
}
ROWS = [
    {"sentence1": f"the {n} cats sleep", "sentence2": f"{n} cats are awake", "label": n % 2}
    for n in range(24)
]


def test_every_public_name_exists_and_is_typed_and_documented() -> None:
    assert len(set(mtkd.__all__)) == len(mtkd.__all__) and set(mtkd.__all__) <= set(dir(mtkd))
    assert mtkd.losses.SoftLabels.__name__ in dir(mtkd.losses)
    for name in mtkd.__all__:
        value = getattr(mtkd, name)
        if callable(value):
            assert value.__doc__, name
        if inspect.isfunction(value):
            hints = {p.name for p in inspect.signature(value).parameters.values() if p.annotation is p.empty}
            assert not hints, f"{name}: {hints} have no type"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = mtkd.nonsense  # type: ignore[attr-defined]


def test_import_mtkd_alone_imports_no_torch() -> None:
    code = "import sys, mtkd; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False", "False"]


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield prefix + name, command


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "augment contextual": augmentation.contextual,
    "augment filter": augmentation.filter_questions,
    "augment mask": augmentation.mask,
    "augment replace": augmentation.replace,
    "augment run": augmentation.run,
    "augment questions filter": augmentation.filter_questions,
    "augment questions generate": augmentation.generate_questions,
    "augment questions train": augmentation.train_questions,
    "bench inference": inference_timing.bench_inference,
    "compare": grid_runs.compare,
    "data check": mtkd.check_data,
    "distill": distillation.distill,
    "evaluate": measurement.evaluate,
    "export": exporting.export,
    "finetune": training.finetune,
    "init": mtkd.init_pipeline,
    "predict": measurement.predict,
    "pull": mtkd.pull,
    "push": mtkd.push,
    "recipes": mtkd.list_recipes,
    "recipes show": mtkd.show_recipe,
    "refine": training.refine,
    "report html": mtkd.report_html,
    "report knowledge": mtkd.report_knowledge,
    "report plot": mtkd.report_plot,
    "run": mtkd.run_pipeline,
    "store build": stores.build_store,
    "store info": stores.store_info,
    "store plan": stores.plan_store,
    "suggest": mtkd.suggest_students,
    "tasks": mtkd.list_tasks,
    "verify": mtkd.verify,
}
# Options that only the command line has: how results are shown, and the demonstration.
SHOWN = {
    "json_file",
    "quiet",
    "report",
    "dry_run",
    "columns",
    "max_lines",
    "complete",
    "as_markdown",
    "repair",
    "folder",
}
RENAMED = {"sets": "settings", "models": "models", "directory": "store"}


def test_every_option_of_a_command_is_an_argument_of_its_function() -> None:
    for name, command in commands(cli):
        if name in ("demo", "recipes settings"):
            continue
        signature = dict(inspect.signature(FUNCTIONS[name]).parameters)
        if name == "predict":  # it also writes submissions
            signature |= inspect.signature(measurement.glue_submission).parameters
        if any(p.kind is p.VAR_KEYWORD for p in signature.values()):
            continue
        options = {p.name for p in command.params if p.name} - SHOWN
        missing = {RENAMED.get(option, option) for option in options} - set(signature)
        assert not missing, f"{name}: {missing}"


class PassedArguments(Exception):
    """Raised by the internal function that receives the arguments."""


@pytest.mark.parametrize(
    ("function", "receiver", "used_elsewhere"),
    [
        (training.refine, "mtkd.api.training.prepare", {"encoder"}),
        (training.finetune, "mtkd.api.training.prepare", set()),
        (
            distillation.distill,
            "mtkd.api.distillation.prepare",
            {"teacher_labels", "student", "losses", "text", "text_column", "corpus", "store", "unlabelled"}
            | {"unlabelled_limit", "workers", "engine", "address"},
        ),
        (stores.plan_store, "mtkd.api.stores.store_request", {"out"}),
        (
            stores.build_store,
            "mtkd.api.stores.store_request",
            {"out", "workers", "engine", "address", "overwrite", "command"},
        ),
        (grid_runs.compare, "mtkd.api.grid_runs.plan_grid", {"dry_run"}),
    ],
)
def test_a_function_passes_on_exactly_its_arguments(
    function: Callable[..., Any], receiver: str, used_elsewhere: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: dict[str, Any] = {}

    def receive(*args: Any, **kwargs: Any) -> None:
        passed.update(kwargs | {f"positional {value}": value for value in args})
        raise PassedArguments

    monkeypatch.setattr(receiver, receive)
    unchecked = inspect.unwrap(function)  # without the type checks, which would reject these values
    given = {name: f"value-of-{name}" for name in inspect.signature(function).parameters}
    if "workers" in given:
        given |= {"workers": 2, "engine": "processes", "address": None}
    if function is grid_runs.compare:
        given |= {"dry_run": False}
    if function is distillation.distill:
        given |= {"text": None, "text_column": "text", "student": None, "losses": None}
    with pytest.raises(PassedArguments):
        unchecked(**given)
    expected = [value for name, value in given.items() if name not in used_elsewhere]
    command = [function.__name__] if receiver.endswith("prepare") else []
    assert sorted(passed.values()) == sorted([*command, *expected])
    renamed = {"tasks": "task"} if function is training.finetune else {"model": "teacher"}
    for name, value in passed.items():
        if not name.startswith("positional"):
            assert value == given.get(renamed.get(name, name), given.get(name)), name


@pytest.fixture(scope="module")
def teacher(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> mtkd.Model:
    out = tmp_path_factory.mktemp("api") / "teacher"
    return mtkd.refine(
        tiny_encoder, data="pocket", tasks=["rte", "sst2"], out=out, limit=32, eval_limit=16, epochs=1,
        settings={"max_length": 24},
    )  # fmt: skip


def student(teacher: mtkd.Model, out: Path, **more: Any) -> mtkd.Model:
    given = {"data": "pocket", "tasks": ["rte", "sst2"], "limit": 32, "eval_limit": 16, "epochs": 1}
    small = {key: value for key, value in SMALL.items() if "student" not in more or "bilstm" not in key}
    settings = small | more.pop("settings", {})
    return mtkd.distill("mkd-lstm", teacher=teacher, out=out, settings=settings, **(given | more))


def test_models_in_memory_are_timed_and_scores_print_as_a_table(
    teacher: mtkd.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    models = [teacher, str(teacher.path) + "/model", mtkd.Model(teacher.module), teacher]
    timed = mtkd.bench_inference(models, seq_len=8, batch=2, rounds=1, warmup=0)
    path = str(teacher.path)
    assert [result.name for result in timed] == [path, f"{path}/model", "model 3", f"{path} (model 4)"]
    with pytest.raises(mtkd.UserError, match="`models` is empty"):
        mtkd.bench_inference([])
    assert len({(result.disk_bytes, result.parameters.total) for result in timed}) == 1
    scores = teacher.evaluate("pocket", "sst2", limit=16)
    head, line, *_ = str(scores).splitlines()
    assert head.split() == ["task", "rows", "score", "best", "constant", "prediction", "metrics"]
    assert repr(scores) == str(scores)
    assert line.split()[:3] == ["sst2", "16", f"{100 * scores['sst2'].primary:.1f}"]
    recorded = teacher.scores["sst2"]
    assert repr(recorded) == (
        f"<TaskScores sst2/validation, {recorded.rows} rows: accuracy {100 * recorded.primary:.1f}, "
        f"best constant prediction {100 * recorded.majority:.1f}>"
    )
    compared = str(teacher.evaluate("pocket", "sst2", limit=16, against=teacher)).splitlines()
    assert compared[3].startswith("against ") and compared[5].split()[-1] == "tied"


@pytest.mark.parametrize(
    ("budget", "size"),
    [(500, 500), ("500", 500), ("1KB", 1000), ("2.5 gb", 2_500_000_000), ("3MiB", 3_000_000), (None, None)],
)
def test_the_budget_of_a_store_may_be_a_text(
    budget: Any, size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mtkd.jobs.knowledge_store.plan_store.plan_store", lambda request, *rest: request.budget
    )
    given: dict[str, Any] = {"data": "pocket", "tasks": "rte", "teacher": tmp_path}
    assert mtkd.plan_store("hsk-tinybert-4", budget=budget, **given) == size
    for wrong in ("2GX", "", "nan", "0.5", "-1", 0, 1.5):
        with pytest.raises(
            mtkd.UserError, match=r"expected: a number of bytes, or a size such as 2GB or 500M"
        ):
            mtkd.plan_store("hsk-tinybert-4", budget=wrong, **given)


def test_errors_name_the_function_and_its_wrong_argument() -> None:
    with pytest.raises(TypeError, match=r"refine\(\) .*'epoch' \(did you mean 'epochs'\?\)"):
        mtkd.refine("minilm", data="pocket", tasks="sst2", out="x", epoch=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"refine\(\) missing a required argument: 'out'"):
        mtkd.refine("minilm", data="pocket", tasks="sst2")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Task\(\) .*'column' \(did you mean 'columns'\?\)"):
        mtkd.Task(name="mood", kind="classify", column="text")  # type: ignore[call-arg]
    for function in (mtkd.augment.estimate_questions, mtkd.augment.generate_questions):
        with pytest.raises(
            TypeError, match=rf"{function.__name__}\(\) .*'per_paragrph' \(did you mean 'per_paragraph'\?\)"
        ):
            function("text.txt", "x", per_paragrph=2)
    with pytest.raises(
        TypeError, match=r"filter_questions\(\) .*'min_overlp' \(did you mean 'min_overlap'\?\)"
    ):
        mtkd.augment.filter_questions("corpus", "teacher", "x", min_overlp=0.5)


def test_values_that_contain_themselves_are_errors(tmp_path: Path) -> None:
    nested: dict[str, Any] = {}
    nested["rte"] = nested
    with pytest.raises(mtkd.UserError, match="nested too deeply"):
        mtkd.show_recipe("static", nested)
    for name in ("settings", "data", "teacher", "tasks", "unlabelled"):
        given = {"data": "pocket", "tasks": "rte", "teacher": "x", "out": tmp_path / "run"} | {name: nested}
        with pytest.raises(mtkd.UserError, match=f"`{name}.*(contains itself|cannot be)"):
            mtkd.distill("static", **given)


def test_rows_in_memory_are_rejected_where_a_path_must_be_recorded(
    teacher: mtkd.Model, tmp_path: Path
) -> None:
    data, frame = {"rte": {"train": ROWS}}, pandas.DataFrame({"sentence": ["a", "b"]})
    grid = {"grid": "mlkd-table-7", "teacher": teacher.path, "out": tmp_path / "t"}
    for call in (
        lambda: mtkd.compare(data=data, **grid),
        lambda: mtkd.compare(data="pocket", unlabelled={"sst2": frame}, **grid),
        lambda: mtkd.build_store("mkd-lstm", data=data, tasks="rte", teacher=teacher, out=tmp_path / "s"),
        lambda: mtkd.build_store("mkd-lstm", tasks=teacher.tasks["rte"], teacher=teacher, out=tmp_path / "s"),
        lambda: student(teacher, tmp_path / "run", unlabelled=frame),
    ):
        with pytest.raises(
            mtkd.UserError, match=r"`(data|unlabelled|tasks)(\['sst2'\])?` (cannot be|holds the task object)"
        ):
            call()  # type: ignore[no-untyped-call]
    assert not list(tmp_path.iterdir())
    mixed = [{"sentence1": "a", "sentence2": "b", "label": label} for label in ("3.5", 7.0)]
    problems = mtkd.check_data({"rte": {"train": mixed}}, "rte").all_problems
    assert any("'label' mixes types: str in row 0, float in row 1" in str(problem) for problem in problems)


def test_a_column_of_texts_is_predicted(teacher: mtkd.Model) -> None:
    texts = ["a fine film .", "a dull film ."]
    expected = teacher.predict("sst2", texts)
    for column in (
        pandas.Series(texts, name="review"),
        np.array(texts),
        pa.array(texts),
        pa.chunked_array([texts]),
        (text for text in texts),
    ):
        assert teacher.predict("sst2", column) == expected
    with pytest.raises(mtkd.UserError, match="row 1 is a float"):
        teacher.predict("sst2", pandas.Series(["a fine film .", 0.5]))


def test_texts_are_encoded_in_order_as_transformers_encodes_them(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    texts = ["a film .", "a long and very dull film about a dog .", "fine", "the dog sleeps ."]
    (tmp_path / "encoder").mkdir()
    shutil.copytree(tiny_encoder, tmp_path / "encoder", dirs_exist_ok=True)
    (tmp_path / "encoder" / "1_Pooling").mkdir()
    (tmp_path / "encoder" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    tokens = AutoTokenizer.from_pretrained(tiny_encoder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(tiny_encoder)(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    means = (states * mask).sum(1) / mask.sum(1)
    for directory, expected in ((tmp_path / "encoder", means), (tiny_encoder, states[:, 0])):
        vectors = mtkd.load(directory).encode(pandas.Series(texts), batch=2)
        assert vectors.dtype == np.float32 and vectors.shape == (4, 16)
        np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("recipe, sizes", [("mkd-lstm", SMALL), ("static", {"student.static.width": 6})])
def test_students_encode_texts(
    teacher: mtkd.Model, tmp_path: Path, recipe: str, sizes: dict[str, Any]
) -> None:
    words: dict[str, Any] = {"data": "pocket", "tasks": "sst2", "teacher": teacher, "limit": 32}
    settings = sizes if recipe == "mkd-lstm" else sizes | {"student.static.init": "random"}
    with warnings.catch_warnings(action="ignore"):
        made = mtkd.distill(recipe, out=tmp_path / "run", settings=settings, epochs=1, eval_limit=16, **words)
    texts = ["fine", "a long and very dull film .", ""]
    vectors = made.encode(texts)
    assert vectors.shape == (3, made.module.encoder.width) and np.isfinite(vectors).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(made.encode([text])[0], vector, atol=1e-5)
    assert made.encode([]).shape == (0, vectors.shape[1])


@pytest.mark.parametrize(
    "texts, message",
    [
        ("a film", "`texts` cannot be a str\n.*\n.*`\\[text\\]`"),
        ([("a", "b")], "2 values in .*expected 1: text"),
        (["a film", 3], "row 1 is an int"),
        ([{"text": None}], "null instead of text"),
    ],
)
def test_only_single_texts_are_encoded(teacher: mtkd.Model, texts: Any, message: str) -> None:
    with pytest.raises(mtkd.UserError, match=message):
        teacher.encode(texts)


def test_text_columns_of_other_names_are_named(teacher: mtkd.Model, processes: Any, tmp_path: Path) -> None:
    texts = {"headline": ["A man sleeps.", "It rains."], "body": ["A man rests.", "The sun shines."]}
    expected = teacher.predict("rte", list(zip(*texts.values(), strict=True)))
    columns = ["headline", "body"]
    frame = pandas.DataFrame({"id": [1, 2], **dict(reversed(texts.items()))})
    predicted = teacher.predict("rte", frame, columns=columns)
    assert list(predicted["prediction"]) == [row["prediction"] for row in expected]
    assert teacher.predict("rte", frame.to_dict("records"), columns=columns) == expected
    hint = "`columns=\\['A', 'B'\\]`"
    with pytest.raises(
        mtkd.UserError, match=f"no column 'sentence1'.*\n.*body, headline; rename one, or .*{hint}"
    ):
        teacher.predict("rte", frame)
    with pytest.raises(
        mtkd.UserError, match="expected: one for each text of the task 'rte': sentence1, sent"
    ):
        teacher.predict("rte", frame, columns=["headline"])
    with pytest.raises(mtkd.UserError, match="names 'headline' twice"):
        teacher.predict("rte", frame, columns=["headline", "headline"])

    frame.to_csv(tmp_path / "rows.csv", index=False)
    words = ("predict", "--model", teacher.path, "--task", "rte", "--in", tmp_path / "rows.csv")
    words += ("--out", tmp_path / "out.csv")
    refused = processes.run(*words)
    assert refused.code == 2 and "name those with the texts in their order: --columns A,B\n" in refused.err
    assert processes.run(*words, "--columns", "headline,body").code == 0
    written = pandas.read_csv(tmp_path / "out.csv")
    assert list(written["prediction"]) == [row["prediction"] for row in expected]
    assert list(written.columns[:3]) == ["id", "body", "headline"]


def test_a_single_text_to_predict_is_an_error_with_a_hint(teacher: mtkd.Model) -> None:
    with pytest.raises(mtkd.UserError, match=r"`rows` cannot be a str\n.*\n  hint: for one row: `\[text\]`"):
        teacher.predict("sst2", "a fine film .")


def test_missing_texts_are_predicted_like_empty_ones_with_a_warning(
    teacher: mtkd.Model, tmp_path: Path
) -> None:
    """pandas reads an empty cell as NaN; a file and a DataFrame must get the same predictions."""
    frame = pandas.DataFrame({"sentence": ["a fine film .", None], "n": [1, 2]})
    frame.to_csv(tmp_path / "in.csv", index=False)
    with pytest.warns(mtkd.MtkdWarning, match=r"1 row of .*in\.csv with an empty text"):
        mtkd.predict(teacher, "sst2", tmp_path / "in.csv", tmp_path / "out.csv")
    expected = pandas.read_csv(tmp_path / "out.csv")["prediction"].tolist()
    for rows in (frame, frame["sentence"], pandas.read_csv(tmp_path / "in.csv")):
        with pytest.warns(mtkd.MtkdWarning, match="1 row with an empty text") as warned:
            found = teacher.predict("sst2", rows)
        assert [warning.filename for warning in warned] == [__file__], "the line that called mtkd"
        assert expected == (
            found["prediction"].tolist() if hasattr(found, "iloc") else [r["prediction"] for r in found]
        )
    assert frame["sentence"].isna().tolist() == [False, True]
    with pytest.raises(mtkd.UserError, match="null instead of text"):
        teacher.predict("sst2", [{"sentence": None}])
    labelled = {"sst2": {"validation": frame.assign(label=[1, 0])}}
    with pytest.raises(mtkd.UserError, match="row 1: column 'sentence': null instead of text") as refused:
        teacher.evaluate(labelled, "sst2")
    assert str(refused.value.hint).startswith(
        "drop the rows without a text, or fill it in; `mtkd.check_data("
    )


class PolarsFrame:
    """The part of polars.DataFrame that mtkd uses, for machines without polars."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._table = pa.table(columns)

    @property
    def columns(self) -> list[str]:
        return self._table.column_names

    def __getitem__(self, name: str) -> pandas.Series:
        return pandas.Series(self._table[name].to_pylist(), name=name)

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_dict(self, *, as_series: bool) -> dict[str, list[Any]]:
        assert not as_series
        return self._table.to_pydict()

    def head(self, n: int) -> PolarsFrame:
        return PolarsFrame(self._table.slice(0, n).to_pydict())

    def get_columns(self) -> list[pandas.Series]:
        return [self[name] for name in self.columns]

    def with_columns(self, columns: Iterable[pandas.Series]) -> PolarsFrame:
        return PolarsFrame(self._table.to_pydict() | {str(column.name): list(column) for column in columns})

    def fill_null(self, value: str) -> None:
        raise AssertionError("the stand-in has no missing values")


@pytest.fixture(params=["polars", "stand-in"])
def polars_frame(request: pytest.FixtureRequest) -> Any:
    """The class polars.DataFrame, or a replacement."""
    return PolarsFrame if request.param == "stand-in" else pytest.importorskip("polars").DataFrame


def test_a_polars_frame_gets_prediction_columns_like_a_pandas_frame(
    polars_frame: Any, teacher: mtkd.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pandas.Series, "fill_null", lambda self, value: self.fillna(value), raising=False)
    columns = {"sentence": ["a fine film .", "a dull film ."], "n": [1, 2]}
    frame, expected = polars_frame(columns), teacher.predict("sst2", columns)
    found = teacher.predict("sst2", frame)
    assert type(found) is polars_frame and frame.columns == ["sentence", "n"]
    got = found.to_dict(as_series=False)
    assert list(got) == [*columns, *expected[0]]
    assert got == columns | {key: [row[key] for row in expected] for key in expected[0]}
    with pytest.raises(mtkd.UserError, match="the DataFrame already has the column 'prediction'"):
        teacher.predict("sst2", found)
    again = teacher.predict("sst2", found, replace=True)
    assert again.to_dict(as_series=False) == got
    empty = teacher.predict("sst2", polars_frame({"sentence": []})).to_dict(as_series=False)
    assert empty == {"sentence": []} | {key: [] for key in expected[0]}


def test_an_empty_frame_gets_prediction_columns_of_the_same_types(teacher: mtkd.Model) -> None:
    frame = pandas.DataFrame({"sentence": ["a fine film ."], "n": [1]})
    answered, empty = teacher.predict("sst2", frame), teacher.predict("sst2", frame[:0])
    assert len(empty) == 0 and empty.dtypes.equals(answered.dtypes)
    assert list(teacher.predict("sst2", pandas.DataFrame({"sentence": np.array([])}))) == [
        "sentence", "prediction", "prediction_id", "probabilities",
    ]  # fmt: skip
    with pytest.raises(mtkd.UserError, match="rows has no column 'sentence'"):
        teacher.predict("sst2", frame[["n"]][:0])
    with pytest.raises(mtkd.UserError, match="already has the column 'prediction'"):
        teacher.predict("sst2", empty)
    assert list(teacher.predict("sst2", empty, replace=True)) == list(empty)


def test_columns_of_a_frame_are_not_replaced_silently(teacher: mtkd.Model) -> None:
    frame = pandas.DataFrame({"sentence": ["a fine film ."], "prediction": ["mine"]})
    with pytest.raises(mtkd.UserError, match="already has the column 'prediction'"):
        teacher.predict("sst2", frame)
    assert teacher.predict("sst2", frame, replace=True)["prediction"].tolist() != ["mine"]


def test_a_fine_tuned_transformers_model_keeps_its_head(
    save_checkpoint: Callable[..., Path],
) -> None:
    with pytest.raises(mtkd.UserError, match="a fine-tuned transformers model") as refused:
        mtkd.load(save_checkpoint("Bert"))
    assert refused.value.hint is not None and "mtkd.evaluate(" in refused.value.hint


def test_an_output_of_a_different_command_is_an_error_that_names_it(
    teacher: mtkd.Model, tiny_teacher: Path
) -> None:
    assert teacher.path is not None
    with pytest.raises(mtkd.UserError, match="a refine run, not a distill run") as caught:
        student(mtkd.load(tiny_teacher), teacher.path)
    assert len(str(caught.value)) < 400


def same_weights(one: mtkd.Model, other: mtkd.Model) -> bool:
    ours, others = one.module.state_dict(), other.module.state_dict()
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)


def test_functions_and_commands_give_the_same_results(
    teacher: mtkd.Model, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    import mtkd as library

    made = student(teacher, tmp_path / "function", seed=3, batch=8)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    answered = mtkd(
        "distill", "mkd-lstm", "--teacher", teacher.path, "--data", "pocket", "--tasks", "rte,sst2",
        "--limit", 32, "--eval-limit", 16, "--epochs", 1, "--seed", 3, "--batch", 8, "--quiet", *sets,
        "--out", tmp_path / "command",
    )  # fmt: skip
    assert answered.code == 0, answered.err
    assert same_weights(made, library.load(tmp_path / "command"))


def test_a_saved_model_has_the_same_scores_and_predictions(teacher: mtkd.Model, tmp_path: Path) -> None:
    assert set(teacher.scores) == {"rte", "sst2"} and teacher.record["status"] == "finished"
    found = teacher.evaluate("pocket", ["rte"], limit=16)
    assert list(found) == ["rte"] and 0 <= found["rte"].primary <= 1
    again = mtkd.load(teacher.save(tmp_path / "copy"))
    pairs = [("A man sleeps.", "A man rests."), ("It rains.", "The sun shines.")]
    answers = teacher.predict("rte", pairs)
    assert answers == again.predict("rte", pairs)
    for answer in answers:
        assert answer["prediction"] in TASKS["rte"].labels
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(mtkd.UserError, match=r"holds files that do not belong to a saved model: notes\.txt"):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes.txt").write_text("mine")
        teacher.save(tmp_path / "full")


def test_rows_in_any_form_get_the_same_predictions(teacher: mtkd.Model) -> None:
    import datasets

    frame = pandas.DataFrame(ROWS[:5])
    expected = [row["prediction"] for row in teacher.predict("rte", ROWS[:5])]
    kinds = [
        pa.Table.from_pylist(ROWS[:5]),
        datasets.Dataset.from_list(ROWS[:5]),
        {name: [row[name] for row in ROWS[:5]] for name in ("sentence1", "sentence2")},
        [(row["sentence1"], row["sentence2"]) for row in ROWS[:5]],
    ]
    for rows in kinds:
        assert [answer["prediction"] for answer in teacher.predict("rte", rows)] == expected
    answered = teacher.predict("rte", frame)
    assert list(answered["prediction"]) == expected and list(answered["label"]) == list(frame["label"])
    assert teacher.predict("sst2", ["fine", "bad"])[0].keys() == answered.to_dict("records")[0].keys() - set(
        frame.columns
    )
    with pytest.raises(mtkd.UserError, match="sentence2"):
        teacher.predict("rte", [{"sentence1": "a"}])
    with pytest.raises(mtkd.UserError, match="cannot be read"):
        teacher.predict("rte", 3)
    assert teacher.predict("rte", []) == []


def test_training_on_rows_in_memory_matches_training_on_files(tiny_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    for split, rows in (("train", ROWS), ("validation", ROWS[:8])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "rte" / f"{split}.jsonl").write_text(lines)
    short = {"tasks": "rte", "epochs": 1, "settings": {"max_length": 24}}
    data = {"rte": {"train": pandas.DataFrame(ROWS), "validation": pa.Table.from_pylist(ROWS[:8])}}
    one = mtkd.refine(tiny_encoder, data=data, out=tmp_path / "memory", **short)
    other = mtkd.refine(tiny_encoder, data=tmp_path, out=tmp_path / "files", **short)
    assert same_weights(one, other)
    digests = [model.record["data"] for model in (one, other)]
    assert digests[0] == digests[1]


def test_splits_are_read_from_the_first_source_that_has_them(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(ROWS)
    source = open_data([{"rte": {"train": rows}}, "pocket"])
    assert len(load_rows(source, TASKS["rte"], "train")) == len(ROWS)
    there = load_rows(open_data("pocket"), TASKS["rte"], "validation")
    assert load_rows(source, TASKS["rte"], "validation").uids.equals(there.uids)


def test_custom_task_loss_and_callback(tiny_encoder: Path, tmp_path: Path) -> None:
    mood = mtkd.Task(name="mood", kind="classify", columns=["text"], labels=["bad", "good"])
    rows = [{"text": f"{word} {n}", "label": word} for n in range(8) for word in ("bad", "good")]
    data = {"mood": {"train": rows, "validation": rows[:6]}}
    teacher = mtkd.refine(tiny_encoder, data=data, tasks=mood, out=tmp_path / "teacher", epochs=1)

    class Distance(mtkd.LossTerm):
        """Twice the squared distance of logits."""

        student_need = teacher_need = mtkd.LOGITS

        def forward(self, given: mtkd.TermInput) -> torch.Tensor:
            return 2 * (given.student_outputs.logits - given.teacher_outputs.logits).square().sum()

    class Steps(mtkd.Callback):
        """Counts steps; stops after four."""

        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_step_end(self, state: Any, control: Any) -> None:
            self.losses.append(state.loss)
            control.should_training_stop = len(self.losses) == 4

    def run(name: str, **more: Any) -> list[float]:
        steps = Steps()
        mtkd.distill(
            "mkd-lstm", teacher=teacher, data=data, tasks=mood, out=tmp_path / name, callbacks=[steps],
            settings=SMALL, epochs=4, batch=4, **more,
        )  # fmt: skip
        return steps.losses

    own = run("own", losses=[Distance()])
    assert len(own) == 4
    assert own[0] == pytest.approx(2 * run("built-in")[0], rel=1e-5), (
        "twice logits_mse before the first update"
    )
    model = mtkd.load(tmp_path / "own")
    assert model.evaluate(data)["mood"].rows == 6, "the model carries its task"
    tuned = mtkd.finetune(model, task="mood", data=data, out=tmp_path / "tuned", epochs=1, lr=1e-3)
    assert tuned.record["learning_rate"] == 1e-3 and list(tuned.tasks) == ["mood"]


class CustomLoss(mtkd.LossTerm):
    """The squared distance of logits, turned into a loss by `result`."""

    student_need = teacher_need = mtkd.LOGITS
    factor = 1

    def forward(self, given: mtkd.TermInput) -> torch.Tensor:
        return self.result((given.student_outputs.logits - given.teacher_outputs.logits).square().mean(1))

    def result(self, values: torch.Tensor) -> torch.Tensor:
        return self.factor * values.sum()


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("losses", [CustomLoss], r"class CustomLoss.*\n.*list of objects.*\n.*CustomLoss\(\.\.\.\)"),
        ("losses", [lambda given: 0], r"losses\[0\]` cannot be a function"),
        ("losses", CustomLoss(), "cannot be a CustomLoss"),
        ("callbacks", mtkd.Callback(), "cannot be a Callback"),
        ("callbacks", [print], r"callbacks\[0\]` cannot be a builtin"),
    ],
)
def test_losses_and_callbacks_of_the_wrong_type_are_rejected(
    argument: str, value: object, message: str, teacher: mtkd.Model, tmp_path: Path
) -> None:
    with pytest.raises(mtkd.UserError, match=message):
        student(teacher, tmp_path / "run", **{argument: value})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda self, values: values, "'CustomLoss' returned shape"),
        (lambda self, values: values.sum().item(), "'CustomLoss' returned a float"),
        (lambda self, values: values.sum().detach(), "'CustomLoss' does not depend on the student"),
        (
            lambda self, values: values.sum() * float("nan"),
            "(?s)the loss 'CustomLoss' is not finite at step 1.*hint: check the formula of 'CustomLoss' for "
            r"divisions by 0, log\(0\) and sqrt\(0\), then start over \(`overwrite=True`\)$",
        ),
    ],
)
def test_invalid_return_values_of_a_loss_are_errors(
    result: Callable,
    message: str,
    teacher: mtkd.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CustomLoss, "result", result)
    with pytest.raises(mtkd.UserError, match=message):
        student(teacher, tmp_path / "run", losses=[CustomLoss()])
    monkeypatch.undo()
    student(teacher, tmp_path / "run", losses=[CustomLoss()])  # a failed run is replaced


def test_an_unusable_loss_is_rejected_before_anything_is_written(
    teacher: mtkd.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LossWithoutForward(CustomLoss):
        def __init__(self) -> None:
            self.scale = 1

    heavy = CustomLoss()
    heavy.weight = "high"  # type: ignore[assignment]
    for loss, message in ((LossWithoutForward(), "super"), (heavy, "weight")):
        with pytest.raises(mtkd.UserError, match=message):
            student(teacher, tmp_path / "run", losses=[loss])
    linear = r"`student` cannot be a Linear\n.*mtkd\.Encoder\n  hint: docs/add-a-student\.md"
    with pytest.raises(mtkd.UserError, match=linear):
        student(teacher, tmp_path / "run", student=torch.nn.Linear(2, 2))
    with pytest.raises(mtkd.UserError, match="it is on the device 'meta'"):
        student(teacher, tmp_path / "run", student=torch.nn.Linear(2, 2, device="meta"))
    frozen = mtkd.load(str(teacher.path)).module.requires_grad_(False)
    with pytest.raises(mtkd.UserError, match="no weight of `student` can be trained"):
        student(teacher, tmp_path / "run", student=frozen)
    assert not (tmp_path / "run").exists()
    misspelt = CustomLoss()
    misspelt.task_types = ["clasify"]
    with pytest.raises(mtkd.UserError, match="task_types"):
        student(teacher, tmp_path / "run", losses=[misspelt])
    monkeypatch.setattr(CustomLoss, "teacher_need", OutputSpec())
    with pytest.raises(mtkd.UserError, match="no `teacher_need`"):
        student(teacher, tmp_path / "run", losses=[CustomLoss()])


class Constant(CustomLoss):
    """A loss of a weight of its own, which may or may not read the student."""

    reads_student = False

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def result(self, values: torch.Tensor) -> torch.Tensor:
        return self.scale * (values if self.reads_student else values.detach()).sum()


def test_a_loss_that_depends_only_on_its_own_weights_is_an_error(
    teacher: mtkd.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(mtkd.UserError, match="'Constant' does not depend on the student"):
        student(teacher, tmp_path / "run", losses=[Constant()])
    monkeypatch.setattr(Constant, "reads_student", True)
    student(teacher, tmp_path / "run", losses=[Constant()])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"student_need": "logits"}, r"`student_need` of the loss Own cannot be 'logits'\n.*mtkd\.LOGITS"),
        ({"teacher_need": ["logits"]}, r"`teacher_need` of the loss Own cannot be \['logits'\]"),
        ({"weight": torch.tensor(1.0)}, r"`weight` of the loss 'Own' is a Tensor\n.*\n.*`float\(weight\)`"),
        ({"weight": np.float32(1.0)}, "`weight` of the loss 'Own' is a float32"),
        ({"weight": "1"}, "`weight` of the loss 'Own' is a str"),
        ({"weight": -1.0}, r"the loss 'Own': weight = -1\.0 is not valid"),
        ({"task_types": ["classfy"]}, r"the loss 'Own': task_types\.0 = 'classfy' is not valid"),
        ({"weight": 0.0}, r"no loss applies to the task '\w+' \(classify\)"),
        ({"task_types": ["span"]}, r"no loss applies to the task '\w+' \(classify\)"),
        ({"student_need": mtkd.OutputSpec(hidden={99})}, "layer 99 .*\n.*leave 'Own' out of `losses`"),
    ],
)
def test_wrong_declarations_of_a_loss_are_errors_before_anything_is_written(
    attributes: dict[str, Any], message: str, teacher: mtkd.Model, tmp_path: Path
) -> None:
    with pytest.raises(mtkd.UserError, match=message):
        student(teacher, tmp_path / "run", losses=[type("Own", (CustomLoss,), attributes)()])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ("losses", {"settings": {"terms.logits.weight": 2}}),
        ("student", {"settings": {"student": {"kind": "static"}}}),
        ("student", {"settings": {"student.bilstm.hidden_size": 3}}),
        ("student", {"init": "minilm"}),
    ],
)
def test_settings_that_an_object_replaces_are_errors(
    argument: str, arguments: dict[str, Any], teacher: mtkd.Model, tmp_path: Path
) -> None:
    replacing: Any = {"losses": [CustomLoss()], "student": teacher}[argument]
    with pytest.raises(mtkd.UserError, match=f"has no effect, because `{argument}` replaces"):
        mtkd.distill(
            "mkd-lstm", data="pocket", teacher=teacher, out=tmp_path, **arguments, **{argument: replacing}
        )


@pytest.mark.parametrize(
    ("fail", "hint"),
    [
        (lambda self, values: 1 / 0, None),
        (lambda self, values: values.missing, "declare every output that it reads"),
        (lambda self, values: values @ torch.ones(7, 7), "check the widths of both models"),
    ],
)
def test_the_hint_suits_the_error_of_a_loss(
    fail: Callable, hint: str | None, teacher: mtkd.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CustomLoss, "result", fail)
    with pytest.raises(mtkd.UserError, match=r"the loss 'CustomLoss' .* failed: ") as error:
        student(teacher, tmp_path / "run", losses=[CustomLoss()])
    assert (error.value.hint or "").startswith(hint or "") and (error.value.hint is None) == (hint is None)


def test_train_settings_and_arguments_must_agree(teacher: mtkd.Model, tmp_path: Path) -> None:
    train = mtkd.TrainSettings(epochs=3)
    with pytest.raises(mtkd.UserError, match=r"`epochs=1` and `train\.epochs=3` contradict each other"):
        student(teacher, tmp_path / "run", epochs=1, train=train)


def test_an_encoder_object_needs_no_settings_but_a_configuration_that_is_found(
    teacher: mtkd.Model, tmp_path: Path
) -> None:
    class Config(mtkd.EncoderConfig):
        input_format = "separate"
        kind: str = "first-token"

        @property
        def spec(self) -> mtkd.EncoderSpec:
            return mtkd.EncoderSpec("first-token", pooled_size=4, offers=OutputSpec(pooled=True))

    class FirstToken(mtkd.Encoder[mtkd.StudentSettings, Config]):
        def forward(self, inputs: Any, need: OutputSpec = mtkd.LOGITS) -> mtkd.EncoderOutput:
            raise NotImplementedError

    assert FirstToken(Config()).input_format == "separate"
    with pytest.raises(mtkd.UserError, match=r"(?s)no encoder has the kind 'first-token'.*Config = Config"):
        student(teacher, tmp_path / "run", student=FirstToken(Config()))
    settings = mtkd.StudentSettings(kind="first-token")
    for build in (FirstToken.build, FirstToken.config_from_settings):
        with pytest.raises(mtkd.UserError, match=f"no method `{build.__name__}`"):
            build(settings, *[None] * (1 if build.__name__ == "build" else 2))  # type: ignore[arg-type]


def test_the_code_of_a_loss_is_part_of_the_run(
    teacher: mtkd.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = student(teacher, tmp_path / "run", losses=[CustomLoss()])
    assert same_weights(made, student(teacher, tmp_path / "run", losses=[CustomLoss()])), (
        "loaded, not repeated"
    )
    monkeypatch.setattr(CustomLoss, "result", lambda self, values: 3 * values.sum())
    with pytest.raises(mtkd.UserError, match="losses"):
        student(teacher, tmp_path / "run", losses=[CustomLoss()])
    monkeypatch.undo()
    for changes in (
        {"task_types": ["classify"]},
        {"levels": [1, 2]},
        {"levels": torch.ones(2)},
        {"levels": np.ones(3)},
    ):
        other = CustomLoss()
        vars(other).update(changes)
        with pytest.raises(mtkd.UserError, match="losses"):
            student(teacher, tmp_path / "run", losses=[other])
    monkeypatch.setattr(CustomLoss, "factor", 2)
    with pytest.raises(mtkd.UserError, match="losses"):
        student(teacher, tmp_path / "run", losses=[CustomLoss()])


def test_warnings_point_at_the_line_that_called_mtkd(teacher: mtkd.Model, tmp_path: Path) -> None:
    with pytest.warns(mtkd.MtkdWarning) as warned:
        mtkd.evaluate(student(teacher, tmp_path / "run", limit=2), data="pocket", tasks="rte", limit=4)
    assert {warning.filename for warning in warned} == {__file__}


def test_a_run_in_a_thread_leaves_no_thread_behind(teacher: mtkd.Model, tmp_path: Path) -> None:
    before, found = set(threading.enumerate()), []
    thread = threading.Thread(target=lambda: found.append(student(teacher, tmp_path / "thread")))
    thread.start()
    thread.join()
    assert set(threading.enumerate()) <= before
    assert same_weights(found[0], student(teacher, tmp_path / "main"))


def test_errors_name_arguments_and_the_command_line_shows_options(
    teacher: mtkd.Model, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    import mtkd as library

    with pytest.raises(library.UserError) as caught:
        library.distill("mkd-lstm", data="pocket", tasks="rte", out=tmp_path / "run")
    assert "`teacher='DIR'`" in str(caught.value) and "--" not in str(caught.value)
    answered = mtkd("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--out", tmp_path / "run")
    assert answered.code == 2 and "--teacher DIR" in answered.err and "`" not in answered.err
    with pytest.raises(library.UserError, match=r"train\.epochs"):
        library.refine(data="pocket", tasks="rte", out=tmp_path / "run", settings={"train.epoch": 3})
    with pytest.raises(library.UserError, match="cannot run on"):
        library.refine(data="pocket", tasks="rte", out=tmp_path / "run", device="cuda:99")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"settings": ["train.epochs=3"]}, "`settings` cannot be a list"),
        ({"tasks": 3}, "`tasks=3` is not valid"),
        ({"out": None}, "`out=None` is not valid"),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error(given: dict[str, Any], message: str) -> None:
    words: dict[str, Any] = {"data": "pocket", "tasks": "rte", "out": "run"}
    with pytest.raises(mtkd.UserError, match=message):
        mtkd.refine(**(words | given))


def test_torch_devices_and_path_like_objects_are_accepted(teacher: mtkd.Model, tmp_path: Path) -> None:
    assert teacher.path is not None

    class Directory:
        def __fspath__(self) -> str:
            return str(tmp_path)

    (tmp_path / "rte").mkdir()
    rows = [{"sentence1": "A man sleeps.", "sentence2": "A man rests.", "label": 0}] * 4
    (tmp_path / "rte" / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words: dict[str, Any] = {"data": Directory(), "tasks": "rte", "device": torch.device("cpu")}
    scored = mtkd.evaluate(teacher.path, **words)
    assert scored["rte"].rows == 4


def test_the_directory_of_several_models_is_not_a_model(teacher: mtkd.Model) -> None:
    assert teacher.path is not None
    with pytest.raises(mtkd.UserError, match=r"is not a model, but contains .*\n.*teacher"):
        mtkd.load(teacher.path.parent)


def test_the_directory_of_a_job_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    job = tmp_path / "job"
    (job / "runs" / "student").mkdir(parents=True)
    with pytest.raises(mtkd.UserError, match="does not contain an mtkd model") as raised:
        mtkd.load(job)
    assert "did you mean" not in str(raised.value)
    (job / "runs" / "student" / "run.json").write_text("{}")
    with pytest.raises(mtkd.UserError, match=r"is not a model, but contains .*\n.*student"):
        mtkd.load(job)


def test_stores_corpora_and_reports_can_be_made_in_python(teacher: mtkd.Model, tmp_path: Path) -> None:
    words = {"data": "pocket", "tasks": ["rte"], "teacher": teacher.path, "limit": 16}
    sets = {"student.max_length": 24, "student.transformer.layers": 2, "student.transformer.heads": 2}
    sets |= {"student.transformer.hidden_size": 8, "student.transformer.intermediate_size": 8}
    planned = mtkd.plan_store("hsk-tinybert-4", out=tmp_path, settings=sets, **words)
    built = mtkd.build_store("hsk-tinybert-4", out=tmp_path / "store", settings=sets, **words)
    assert planned.rows == 16 and mtkd.store_info(tmp_path / "store") == built
    assert not mtkd.verify(tmp_path / "store").damaged and not mtkd.repair_store(tmp_path / "store")
    corpus = mtkd.augment.mask("pocket", "rte", tmp_path / "corpus", copies={"rte": 2}, limit=16)
    assert corpus.manifest.rows == 32
    report = mtkd.check_data({"rte": {"train": ROWS}}, "rte")
    assert report.error_count and any("validation" in str(problem) for problem in report.all_problems)
    assert mtkd.show_recipe("static", {"train.epochs": 2}).train.epochs == 2
    assert {"mkd-lstm", "static"} <= set(mtkd.list_recipes()) and mtkd.list_recipes("refine") == [
        "mkd-refine",
        "refine",
    ]


def test_models_in_memory_can_be_used_in_place_of_paths(tiny_teacher: Path, tmp_path: Path) -> None:
    module = MultiTaskModel.load(tiny_teacher)
    named = student(mtkd.load(tiny_teacher), tmp_path / "named")
    given = student(mtkd.Model(module), tmp_path / "given")
    assert same_weights(named, given)
    logits = [model.predict("sst2", ["a fine film"])[0]["probabilities"] for model in (named, given)]
    assert logits[0] == logits[1] and np.isfinite(list(logits[0].values())).all()
    assert importlib.import_module("mtkd").load is mtkd.load
