"""`mtkd init`: the files that it writes for all kinds of data, and their pipelines run with `mtkd run`."""

from __future__ import annotations

import csv
import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mtkd
from mtkd.cli.flags import as_options
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import PocketSource, open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.glue import TASKS
from tasks.task_names import resolve


def pocket(task: str, split: str) -> list[dict[str, Any]]:
    return PocketSource().table(TASKS[task], split).to_pylist()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(write(path.with_suffix(""), rows).read_bytes()))
        path.with_suffix("").unlink()
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(path, "w", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def texts(table: pa.Table) -> set[str]:
    return set(table["sentence"].to_pylist())


@pytest.mark.slow(reason="trains three models and exports one")
def test_the_pipeline_written_for_one_csv_runs(tmp_path: Path, tiny_encoder: Path, mtkd: Callable) -> None:
    import mtkd as library

    rows = pocket("sst2", "train")[:80]
    for row in rows[70:]:
        row["label"] = ""
    data = write(tmp_path / "reviews.csv", rows)
    done = mtkd("init", data, "--out", tmp_path / "job")
    assert done.code == 0, done.err
    assert f"next: mtkd run {tmp_path / 'job' / 'pipeline.toml'}" in done.out
    assert (
        "10 training rows without a label" in done.out
        and "7 of 70 training rows are set aside for validation" in done.out
    )
    written = {path.name for path in (tmp_path / "job").iterdir() if not path.name.startswith(".")}
    splits = ("train", "validation", "unlabelled")
    assert written == {"pipeline.toml", "reviews.toml", *(f"reviews-{split}.parquet" for split in splits)}
    tables = {split: pq.read_table(tmp_path / "job" / f"reviews-{split}.parquet") for split in splits}
    assert {split: len(table) for split, table in tables.items()} == {
        "train": 63,
        "validation": 7,
        "unlabelled": 10,
    }
    assert not texts(tables["train"]) & texts(tables["validation"])
    assert "label" not in tables["unlabelled"].column_names

    small = {"steps.teacher.encoder": str(tiny_encoder), "steps.teacher.epochs": 1, "steps.student.steps": 2}
    results = library.run_pipeline(tmp_path / "job" / "pipeline.toml", settings=small)
    names = ["teacher", "student", "control", "comparison", "against-teacher", "report", "export"]
    assert [result.name for result in results] == names
    out = tmp_path / "job" / "runs"
    assert "reviews" in (out / "report.html").read_text()
    records = {name: json.loads((out / name / "run.json").read_text()) for name in ("student", "control")}
    assert {record["training"]["steps"] for record in records.values()} == {2}
    assert records["student"]["rows"]["reviews"]["unlabelled"] == 10
    assert records["control"]["rows"]["reviews"]["unlabelled"] == 0
    compared = json.loads((out / "comparison.json").read_text())
    assert compared["scores"]["reviews/validation"]["rows"] == 7 and compared["differences"]
    exported = library.load(out / "export").evaluate(None, str(tmp_path / "job" / "reviews.toml"))
    assert exported["reviews"].rows == 7


def test_written_files_have_no_columns_that_data_check_reports(tmp_path: Path) -> None:
    rows = [{**row, "ticket_id": n, "source": "web"} for n, row in enumerate(pocket("sst2", "train")[:60])]
    mtkd.init_pipeline(write(tmp_path / "reviews.csv", rows), out=tmp_path / "job")
    report = mtkd.check_data(tasks=str(tmp_path / "job" / "reviews.toml"))
    assert not any("does not read" in problem.message for problem in report.all_problems)
    names = pq.read_table(tmp_path / "job" / "reviews-train.parquet").column_names
    assert "ticket_id" in names and "source" not in names


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz"])
def test_files_stay_in_place_and_their_names_decide_their_split(suffix: str, tmp_path: Path) -> None:
    rows = {split: pocket("rte", split)[:20] for split in ("train", "validation", "test")}
    files = [write(tmp_path / "entailment" / f"{split}{suffix}", part) for split, part in rows.items()]
    plain = [
        {name: row[name] for name in ("sentence1", "sentence2")} for row in pocket("rte", "train")[20:50]
    ]
    more = write(tmp_path / "entailment" / f"crawled{suffix}", plain)
    result = mtkd.init_pipeline([*files, more], out=tmp_path / "entailment" / "job")
    assert (result.task.name, result.task.kind) == ("entailment", "classify")
    assert result.task.columns == ("sentence1", "sentence2") and result.task.labels == ("0", "1")
    assert result.rows == {"train": 20, "validation": 20, "test": 20, "unlabelled": 30}
    lines = repr(result).splitlines()
    assert lines[:2] == ["task      entailment (classify)", "text      sentence1, sentence2"]
    assert lines[4:7] == [
        "rows      train 20, validation 20, test 20, unlabelled 30",
        f"length    at most {result.max_length} tokens per row",
        f"pipeline  {result.pipeline}",
    ]
    made = {path.name for path in result.pipeline.parent.iterdir() if not path.name.startswith(".")}
    assert made == {"pipeline.toml", "entailment.toml"}
    (task,) = resolve(str(result.task_file))
    for split, part in rows.items():
        found = load_rows(open_data(None), task, split)
        assert found.texts[1].to_pylist() == [row["sentence2"] for row in part]
    steps = mtkd.run_pipeline(result.pipeline, dry_run=True)
    assert f"--unlabelled entailment=../crawled{suffix}" in steps[1].command
    request = UnlabelledRequest({"entailment": str(more)})
    assert request.append(open_data(None), task, load_rows(open_data(None), task, "train"))[1] == 30


def test_notes_list_other_readings_of_the_data(tmp_path: Path) -> None:
    rows = [{"text": f"word {n} here" if n % 9 else " ", "urgent": n % 2, "grade": n % 3} for n in range(40)]
    result = mtkd.init_pipeline(write(tmp_path / "a.csv", rows), out=tmp_path / "job")
    assert result.task.label == "urgent" and result.task.kind == "classify"
    assert result.notes[:3] == (
        "5 empty texts in the train rows",
        "the label could also be 'grade'; to choose it, use `label='COLUMN'`",
        "the numbers in 'urgent' are treated as classes; if they are scores, use `kind='regress'`",
    )


def test_a_column_of_probabilities_is_named_and_kept(tmp_path: Path) -> None:
    rows = [
        {"text": f"the text {n}", "label": "ab"[n % 2], "probs": [0.3, 0.7], "n": [n, n]} for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = mtkd.init_pipeline(tmp_path / "rows.jsonl", out=tmp_path / "job")
    (note,) = (note for note in made.notes if "soft_labels" in note)
    assert "the column 'probs'" in note and 'soft_labels = "probs"' in note
    assert pq.read_schema(tmp_path / "job" / "rows-train.parquet").names == ["text", "label", "probs"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_integer_labels_have_the_same_names_in_all_formats(suffix: str, tmp_path: Path) -> None:
    table = pa.table(
        {"text": [f"the text {n}" for n in range(40)], "label": [float(n % 3) for n in range(40)]}
    )
    file = tmp_path / f"rows.{suffix}"
    pq.write_table(table, file) if suffix == "parquet" else table.to_pandas().to_csv(file, index=False)
    table.slice(0, 9).to_pandas().to_csv(tmp_path / "dev.csv", index=False)
    made = mtkd.init_pipeline([file, tmp_path / "dev.csv"], out=tmp_path / "job")
    assert made.task.labels == ("0", "1", "2")
    assert any("are treated as classes" in note for note in made.notes)
    assert not any("in no" in note for note in made.notes), made.notes
    assert not mtkd.check_data(tasks=made.task_file).error_count


def test_one_pipeline_can_join_two_tasks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        mtkd.init_pipeline(write(tmp_path / f"{name}.csv", ROWS), out=tmp_path / name)
    joined = {"tasks": "a.toml,../b/b.toml", "steps.student.unlabelled": {"a": "../a.csv", "b": "../b.csv"}}
    steps = mtkd.run_pipeline(tmp_path / "a" / "pipeline.toml", settings=joined, dry_run=True)
    commands = [step.command for step in steps]
    assert all("--tasks a.toml,../b/b.toml" in command for command in commands[:3])
    assert "--unlabelled a=../a.csv --unlabelled b=../b.csv" in commands[1]


def test_the_split_does_not_depend_on_the_order_and_keeps_texts_together(tmp_path: Path) -> None:
    rows = pocket("sst2", "train")[:100] * 2
    held = []
    for name, part in (("a", rows), ("b", rows[::-1])):
        data = write(tmp_path / name / "rows.jsonl", part)
        result = mtkd.init_pipeline(data, out=tmp_path / name, validation_fraction=0.3)
        tables = [
            pq.read_table(tmp_path / name / f"rows-{split}.parquet") for split in ("train", "validation")
        ]
        assert not texts(tables[0]) & texts(tables[1]) and len(tables[0]) + len(tables[1]) == 200
        assert result.rows["validation"] == pytest.approx(60, abs=4)
        held.append(texts(tables[1]))
    assert held[0] == held[1]


@pytest.mark.parametrize(
    ("file", "name", "task", "built_in"),
    [
        ("nli.jsonl", None, "nli-own", "group of tasks"),
        ("rte_train.jsonl", None, "rte-own", "task"),
        ("nli.jsonl", "mine-own", "mine-own", None),
        ("my-own.jsonl", None, "my-own", None),
    ],
)
def test_a_file_named_like_a_built_in_task_gives_a_note(
    file: str, name: str | None, task: str, built_in: str | None, tmp_path: Path
) -> None:
    data = write(tmp_path / file, [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(40)])
    made = mtkd.init_pipeline(data, out=tmp_path / "job", name=name, dry_run=True)
    notes = [note for note in made.notes if "is called" in note]
    assert made.task.name == task and len(notes) == (built_in is not None)
    assert not notes or f"is a built-in {built_in}; to change it: `name='NAME'`" in notes[0]


def test_validation_rows_that_are_training_rows_give_a_note(tmp_path: Path) -> None:
    rows = [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(120)]
    train = write(tmp_path / "train.jsonl", rows)
    for first, shared in ((119, 1), (80, 40)):
        new = [{"text": f"new {n}", "label": "ab"[n % 2]} for n in range(60)]
        dev = write(tmp_path / "dev.jsonl", [*rows[first:], *new, *new])
        made = mtkd.init_pipeline([train, dev], out=tmp_path / "job", dry_run=True)
        notes = [note for note in made.notes if "also in the training rows" in note]
        share = f"{shared} of the {shared + 120} rows of the validation split ({shared / (shared + 120):.0%})"
        assert [note.startswith(share) for note in notes] == ([True] if shared > 1 else [])
    alone = mtkd.init_pipeline(write(tmp_path / "own.jsonl", rows * 2), out=tmp_path / "job", dry_run=True)
    assert not any("also in the training rows" in note for note in alone.notes), "equal texts stay together"


def test_long_validation_rows_increase_the_length_or_give_a_note(tmp_path: Path) -> None:
    rows = [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(40)]
    train = write(tmp_path / "train.jsonl", rows)
    for long, length in ((4, 64), (1, 32)):
        texts = ["word " * 50 + str(n) if n < long else f"new {n}" for n in range(40)]
        dev = write(tmp_path / "dev.jsonl", [{"text": t, "label": "ab"[n % 2]} for n, t in enumerate(texts)])
        for given in (None, 32):
            made = mtkd.init_pipeline([train, dev], out=tmp_path / "job", max_length=given, dry_run=True)
            assert made.max_length == (given or length)
            note = f"{long / 40:.1%} of the validation rows have more than 32 tokens, and will be truncated"
            assert any(each.startswith(note) for each in made.notes) == (long == 4 and given is not None)


def test_unlabelled_text_may_be_one_text_per_line(tmp_path: Path) -> None:
    rows = [{"review": f"row {n}", "stars": "ab"[n % 2]} for n in range(40)]
    train = write(tmp_path / "train.jsonl", rows)
    text = tmp_path / "more.txt"
    text.write_text("one, two\n\n  three\nfour\n", encoding="utf-8")
    made = mtkd.init_pipeline([train, text], out=tmp_path / "job")
    assert made.rows["unlabelled"] == 3 and made.task.columns == ("review",)
    (task,) = resolve(str(tmp_path / "job" / f"{made.task.name}.toml"))
    read = UnlabelledRequest({task.name: str(text)}).open(open_data(None), task)
    assert read and [raw.table["review"].to_pylist() for raw in read()] == [["one, two", "  three", "four"]]


def test_text_in_another_language_gives_a_note(tmp_path: Path) -> None:
    for words, foreign in (("кошка и собака", True), ("café au lait", False)):
        rows = [{"text": f"{words} {n}", "label": "ab"[n % 2]} for n in range(40)]
        made = mtkd.init_pipeline(write(tmp_path / "own.jsonl", rows), out=tmp_path / "job", dry_run=True)
        assert any("which is English: use an encoder" in note for note in made.notes) == foreign


@pytest.mark.parametrize("column", ["label", "tags"])
def test_each_label_keeps_training_rows(column: str, tmp_path: Path) -> None:
    labels = [*["a", "b"] * 20, *(f"rare{n}" for n in range(20))]
    values = [[label] for label in labels] if column == "tags" else labels
    rows = [{"text": f"row number {n}", column: value} for n, value in enumerate(values)]
    data = write(tmp_path / "own.jsonl", rows)
    result = mtkd.init_pipeline(data, out=tmp_path, validation_fraction=0.2, max_length=200)
    assert result.max_length == 200
    assert "set.student.max_length = 200" in (tmp_path / "pipeline.toml").read_text()
    train = pq.read_table(tmp_path / "own-train.parquet")[column].to_pylist()
    held_out = pq.read_table(tmp_path / "own-validation.parquet")[column].to_pylist()
    assert (len(train), len(held_out)) == (48, 12)
    assert {str(label) for label in train} >= {str(row[column]) for row in rows}
    if column == "label":
        assert "20 of 22 labels have fewer than 5 training rows" in result.notes[2]
        assert "20 of 22 labels are in no validation row" in result.notes[3]


def test_each_label_with_several_rows_is_in_a_validation_row(tmp_path: Path) -> None:
    labels = [*["common"] * 160, *(f"label {n}" for n in range(8) for _ in range(5))]
    rows = [{"text": f"row number {n}", "label": label} for n, label in enumerate(labels)]
    mtkd.init_pipeline(write(tmp_path / "own.jsonl", rows), out=tmp_path, validation_fraction=0.1)
    held_out = pq.read_table(tmp_path / "own-validation.parquet")["label"].to_pylist()
    assert len(held_out) == 20 and set(held_out) == set(labels)


def test_the_validation_rows_hold_the_same_part_of_each_class(tmp_path: Path) -> None:
    labels = [*["a"] * 500, *["b"] * 373, *["rare"] * 27]
    rows = [{"text": f"row number {n}", "label": label} for n, label in enumerate(labels)]
    mtkd.init_pipeline(write(tmp_path / "own.jsonl", rows), out=tmp_path)
    held_out = pq.read_table(tmp_path / "own-validation.parquet")["label"].to_pylist()
    assert [held_out.count(label) for label in ("a", "b", "rare")] == [50, 37, 3]


def test_labels_with_one_row_each_cannot_be_split(tmp_path: Path) -> None:
    rows = [{"text": f"row number {n}", "label": f"label {n}"} for n in range(20)]
    with pytest.raises(mtkd.UserError, match="no training row can be set aside for validation"):
        mtkd.init_pipeline(write(tmp_path / "own.jsonl", rows), out=tmp_path / "job")


def test_questions_of_which_none_has_an_answer_are_noted(tmp_path: Path) -> None:
    answers: dict[str, list[str]] = {"text": [], "answer_start": []}
    rows = [{"question": f"Who is {n}?", "context": f"Nobody is {n}.", "answers": answers} for n in range(30)]
    write(tmp_path / "qa.jsonl", rows)
    notes = mtkd.init_pipeline(tmp_path / "qa.jsonl", out=tmp_path / "job", dry_run=True).notes
    about = "rows: no row has an answer, so these labels carry no information"
    assert [note for note in notes if about in note] == [f"train {about}", f"validation {about}"]


@pytest.mark.parametrize(("task", "kind"), [("stsb", "regress"), ("squad_v2", "span")])
def test_other_task_types_are_valid_tasks(task: str, kind: str, tmp_path: Path) -> None:
    data = write(tmp_path / "own.parquet", pocket(task, "train")[:60])
    result = mtkd.init_pipeline(data, out=tmp_path / "job", name="own")
    assert result.task.kind == kind == resolve(str(result.task_file))[0].kind
    assert not mtkd.check_data(None, str(result.task_file)).error_count
    assert len(mtkd.run_pipeline(result.pipeline, dry_run=True)) == 7


def test_rows_with_several_labels_make_a_multilabel_task(tmp_path: Path) -> None:
    rows = [{"text": f"row number {n}", "tags": "|".join(["new", "hot"][: n % 3])} for n in range(60)]
    result = mtkd.init_pipeline(write(tmp_path / "tags.csv", rows), out=tmp_path / "job")
    assert result.task.kind == "multilabel" and result.task.labels == ("hot", "new")
    assert result.rows["unlabelled"] == 20, "an empty cell is no label"


def test_labels_may_occur_only_in_validation_rows(tmp_path: Path) -> None:
    train = [{"text": f"row number {n}", "label": "ab"[n % 2]} for n in range(20)]
    valid = [{"label": "abc"[n % 3], "text": f"another row {n}", "source": "x"} for n in range(9)]
    files = [write(tmp_path / "x-train.csv", train), write(tmp_path / "x-dev.csv", valid)]
    assert mtkd.init_pipeline(files, out=tmp_path, name="x").task.labels == ("a", "b", "c")


def test_a_data_set_on_the_hub_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = [{"text": f"row number {n}", "label": n % 2} for n in range(50)]
    plain = [{"text": f"more text {n}", "label": -1} for n in range(30)]
    parts = {"train": rows, "test": rows[:10], "unsupervised": plain}
    loaded = {name: datasets.Dataset.from_list(part, features=features) for name, part in parts.items()}
    asked = []
    monkeypatch.setattr("tasks.data.hub_data.hub_error", lambda endpoint: None)
    monkeypatch.setattr("datasets.load_dataset", lambda *given: asked.append(given) or loaded)
    result = mtkd.init_pipeline("someone/reviews:plain", out=tmp_path)
    assert asked == [("someone/reviews", "plain")]
    assert result.task.name == "reviews" and result.task.labels == ("neg", "pos")
    assert result.rows == {"train": 45, "validation": 5, "test": 10, "unlabelled": 30}
    assert not mtkd.check_data(None, str(result.task_file)).error_count
    assert "reviews-unlabelled.parquet" in mtkd.run_pipeline(result.pipeline, dry_run=True)[1].command
    loaded["dev"] = loaded["validation"] = loaded["test"]
    with pytest.raises(UserError, match="both look like validation rows") as caught:
        mtkd.init_pipeline("someone/reviews", out=tmp_path / "two")
    assert "to_parquet" in str(caught.value.hint)
    del loaded["train"], loaded["dev"]
    with pytest.raises(UserError, match="no split of someone/reviews on the hub is for training") as caught:
        mtkd.init_pipeline("someone/reviews", out=tmp_path / "none")
    assert "to_parquet" in str(caught.value.hint)


def test_files_of_the_user_are_not_replaced(tmp_path: Path) -> None:
    data = write(tmp_path / "mine.csv", [{"text": f"row number {n}", "label": n % 2} for n in range(20)])
    (tmp_path / "pipeline.toml").write_text("mine")
    with pytest.raises(mtkd.UserError, match=r"pipeline\.toml would be replaced"):
        mtkd.init_pipeline(data, out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.csv", "pipeline.toml"}
    with pytest.raises(mtkd.UserError, match=r"pipeline\.toml would be replaced, and is not"):
        mtkd.init_pipeline(data, out=tmp_path, overwrite=True)
    (tmp_path / "pipeline.toml").unlink()
    mtkd.init_pipeline(data, out=tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "pipeline.json").write_text("{}")
    result = mtkd.init_pipeline(data, out=tmp_path, validation_fraction=0.2, overwrite=True)
    assert f"{tmp_path / 'runs'} holds the output of an earlier pipeline" in result.notes[-1]
    again = tmp_path / "mine-train.parquet"
    before = again.read_bytes()
    with pytest.raises(mtkd.UserError, match="would be overwritten with some of its own rows"):
        mtkd.init_pipeline(again, out=tmp_path, name="mine", overwrite=True)
    assert again.read_bytes() == before


def test_a_changed_source_of_copied_rows_is_named(tmp_path: Path) -> None:
    source, out = write(tmp_path / "tickets.csv", ROWS), tmp_path / "job"

    def run_warnings() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mtkd.run_pipeline(out / "pipeline.toml", dry_run=True)
        return [str(warning.message) for warning in caught]

    mtkd.init_pipeline(source, out=out)
    assert not run_warnings()
    write(source, ROWS[1:])
    (warning,) = run_warnings()
    assert f"{source} has changed since `mtkd init`; the job still uses its rows from then" in warning
    assert "repeat mtkd init with the same arguments and --overwrite" in as_options(warning)
    mtkd.init_pipeline(source, out=out, overwrite=True)
    assert not run_warnings()
    source.unlink()
    assert not run_warnings(), "the rows may have been moved elsewhere"
    write(source, ROWS)
    assert run_warnings()
    record = out / ".mtkd-init.json"
    values = json.loads(record.read_text())
    assert values.pop("sources").keys() == {str(source.resolve())}
    del values["check"]
    record.write_text(json.dumps(values))  # as earlier versions wrote it
    assert not run_warnings()


def test_files_that_are_used_in_place_are_no_copied_sources(tmp_path: Path) -> None:
    files = [write(tmp_path / name, ROWS) for name in ("train.csv", "dev.csv")]
    mtkd.init_pipeline(files, out=tmp_path / "job", name="own")
    assert not json.loads((tmp_path / "job" / ".mtkd-init.json").read_text())["sources"]


def test_an_edited_pipeline_is_kept_when_it_is_replaced(tmp_path: Path) -> None:
    source, out = write(tmp_path / "tickets.csv", ROWS), tmp_path / "job"
    pipeline = mtkd.init_pipeline(source, out=out).pipeline
    for number, copy in enumerate(("pipeline.toml.bak", "pipeline.toml.bak2"), start=1):
        edited = pipeline.read_text() + f"# edit {number}\n"
        pipeline.write_text(edited)
        dry = mtkd.init_pipeline(source, out=out, overwrite=True, dry_run=True)
        assert not (out / copy).exists() and pipeline.read_text() == edited
        made = mtkd.init_pipeline(source, out=out, overwrite=True)
        note = f"you have edited pipeline.toml: it is replaced, and your version is kept as {copy}"
        assert note in made.notes and note in dry.notes
        assert (out / copy).read_text() == edited and "# edit" not in pipeline.read_text()
    made = mtkd.init_pipeline(source, out=out, overwrite=True, max_length=48)
    assert not any("edited" in note for note in made.notes)


BAD = '{"text": "a b", "label": 1}\n{"text": \n' * 9
ROWS = [{"text": f"row number {n}", "label": n % 2} for n in range(20)]


@pytest.mark.parametrize(
    ("files", "given", "parts"),
    [
        ({"empty.csv": ""}, [], ["empty.csv has no rows"]),
        ({"head.csv": "text,label\n"}, [], ["head.csv has no rows"]),
        ({"one.csv": "text\na b\n"}, [], ["one.csv has one column, 'text'", "--unlabelled FILE"]),
        ({"bad.jsonl": BAD}, [], ["9 lines of bad.jsonl", "line 2: not JSON"]),
        (
            {"rows.txt": "a"},
            [],
            ["rows.txt has one column, 'text'", "expected: a text column and a label column"],
        ),
        (
            {"dev.csv": ROWS, "test.csv": ROWS},
            [],
            ["is for training", "add a file of labelled training rows"],
        ),
        ({"train.csv": ROWS, "x-train.csv": ROWS}, [], ["both look like train rows", "for two tasks"]),
        ({"a.csv": ROWS, "b.csv": ROWS}, [], ["both hold labelled rows", "--validation FILE", "one task"]),
        (
            {"a.csv": ROWS, "b.csv": "review,topic\nfine food,1\nslow staff,0\n"},
            [],
            ["b.csv has no column 'text', which holds the text of a.csv", "its columns are review, topic"],
        ),
        ({"a.csv": ROWS}, ["--unlabelled", "a.csv"], ["a.csv is given twice"]),
        ({"a.csv": ROWS}, ["a.csv"], ["a.csv is given twice"]),
        ({"a.csv": ROWS}, ["--validation", "./b/../a.csv"], ["a.csv is given twice, also as a.csv"]),
        ({"a.csv": ROWS, "b.csv": ROWS}, ["--unlabelled", "b.csv"], ["b.csv is given twice"]),
        (
            {"mail.csv": ROWS},
            ["--validation", "mai.csv"],
            ["no such file: mai.csv", "did you mean 'mail.csv'?"],
        ),
        ({"a.csv": ROWS}, ["--validation-fraction", "1"], ["--validation-fraction 1"]),
        ({"a.csv": ROWS, "dev.csv": ROWS}, ["--validation-fraction", "0.2"], ["there are validation rows"]),
        ({"a.csv": ROWS}, ["--name", "rte"], ["--name rte is a built-in task"]),
        ({"a.csv": ROWS}, ["--name", "nli"], ["--name nli is a built-in group of tasks"]),
        ({"a.json": "[]"}, [], ["a.json has no rows"]),
        ({"a.json": "3"}, [], ["a.json does not hold a list of rows", "expected: an array of objects"]),
        (
            {"a.csv": ROWS},
            ["--name", "a b"],
            ["--name 'a b' cannot be the name of a task", "starting with a letter"],
        ),
        ({"a.csv": ROWS}, ["--label", "text", "--columns", "text"], ["one column has two roles: text, text"]),
        (
            {
                "mail.csv": [
                    {"text": f"row {n} of mail", "id": n, "day": f"2024-05-{n % 5 + 1}"} for n in range(20)
                ]
            },
            ["--teacher", "DIR"],
            ["no column of mail.csv looks like labels: the columns are text, id, day", "--label COLUMN"],
        ),
        ({"a.csv": ROWS[:1] * 20 + [ROWS[1] | {"text": "row number 0"}]}, [], ["one text cannot be split"]),
    ],
)
def test_invalid_usage_is_one_error_and_writes_nothing(
    files: dict[str, Any], given: list[str], parts: list[str], tmp_path: Path, mtkd: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, rows in files.items():
        Path(name).write_text(rows) if isinstance(rows, str) else write(Path(name), rows)
    answered = mtkd("init", *files, *given, "--out", "job")
    assert answered.code == 2 and "Traceback" not in answered.err, answered
    assert all(part in answered.err for part in parts), answered.err
    assert not Path("job").exists()


def test_unlabelled_rows_with_labels_are_one_error(
    tmp_path: Path, mtkd: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "more.csv"):
        write(Path(name), ROWS)
    answered = mtkd("init", "a.csv", "--unlabelled", "more.csv", "--out", "job")
    assert answered.code == 2 and not Path("job").exists()
    assert all(part in answered.err for part in ("--unlabelled", "have a label", "delete the column 'label'"))


@pytest.mark.parametrize("name", ["nowhere.csv", "some-one/no-such-data"])
def test_missing_data_is_an_error(name: str, tmp_path: Path, mtkd: Callable) -> None:
    answered = mtkd("init", name, "--out", tmp_path / "job")
    assert answered.code == 2 and name in answered.err and not (tmp_path / "job").exists()


def test_a_label_without_training_rows_is_named(tmp_path: Path) -> None:
    rows = [{"text": f"row {n}", "label": "good" if n % 2 else "bad"} for n in range(20)]
    write(tmp_path / "train.jsonl", rows)
    others = [{**row, "text": f"other {row['text']}"} for row in rows[:4]]
    write(tmp_path / "validation.jsonl", [*others, {"text": "odd", "label": "godo"}])
    made = mtkd.init_pipeline(
        [str(tmp_path / "train.jsonl"), str(tmp_path / "validation.jsonl")], out=tmp_path / "out"
    )
    assert made.notes[1:] == (
        "the label 'godo' is in validation rows, but in no training row: is it a typo?",
    )


@pytest.mark.parametrize("written", [int, float])
def test_minus_one_counts_as_unlabelled_with_a_note(written: type, tmp_path: Path) -> None:
    rows = [{"text": f"row number {n}", "label": written(n % 3 - 1)} for n in range(60)]
    result = mtkd.init_pipeline(write(tmp_path / "own.csv", rows), out=tmp_path / "job")
    assert result.rows["unlabelled"] == 20
    assert any("20 of them are labelled -1: it means no label" in note for note in result.notes)


def test_blank_labels_are_missing_and_labels_that_look_alike_are_named(tmp_path: Path) -> None:
    labels = ["yes", "YES", "yes ", "no", " "]
    rows = [{"text": f"row number {n}", "label": labels[n % 5]} for n in range(40)]
    result = mtkd.init_pipeline(write(tmp_path / "own.csv", rows), out=tmp_path / "job")
    assert result.task.labels == ("YES", "no", "yes", "yes ")
    assert any("'YES' and 'yes', 'YES' and 'yes '" in note for note in result.notes), result.notes
    assert "8 training rows without a label: the student uses their text" in result.notes


def test_rare_labels_and_labels_that_may_mean_none_are_named(tmp_path: Path) -> None:
    labels = ["refuted", "supported"] * 20 + ["Supported ", "n/a", "n/a"]
    rows = [{"text": f"row number {n}", "label": label} for n, label in enumerate(labels)]
    notes = mtkd.init_pipeline(write(tmp_path / "own.csv", rows), out=tmp_path / "job").notes
    assert "2 of 4 labels have fewer than 5 training rows: 'Supported ' (1), 'n/a' (2)" in notes
    (missing,) = (note for note in notes if "missing value" in note)
    assert missing.startswith("the label 'n/a' (2 training rows) may stand for a missing value")


def test_cells_that_are_unlike_the_rest_of_their_column_are_named(tmp_path: Path) -> None:
    rows = [{"text": f"row number {n}", "label": "yes" if n % 2 else "no", "grade": n / 2} for n in range(40)]
    rows[30] |= {"label": "7", "grade": "good"}
    data = write(tmp_path / "own.csv", rows)
    notes = mtkd.init_pipeline(data, out=tmp_path / "job").notes
    assert f"the label '7' ({data}:32) is a number, unlike most labels: is it a mistake?" in notes
    for kind in (None, "regress"):
        with pytest.raises(mtkd.UserError, match=r"own\.csv:32: the label 'good' in the column 'grade'"):
            mtkd.init_pipeline(data, out=tmp_path / "job2", label="grade", kind=kind)
    train, valid = write(tmp_path / "train.csv", rows[:30]), write(tmp_path / "dev.csv", rows[25:])
    with pytest.raises(mtkd.UserError, match=r"dev\.csv:7: the label 'good' in the column 'grade'"):
        mtkd.init_pipeline([train, valid], out=tmp_path / "job2", label="grade")


def test_the_maximum_length_follows_from_the_longest_rows(tmp_path: Path) -> None:
    words = {"short": 20, "long": 100, "too-long": 400}
    for name, count in words.items():
        rows = [{"text": f"{n} " + "cat " * count, "label": n % 2} for n in range(40)]
        result = mtkd.init_pipeline(write(tmp_path / f"{name}.csv", rows), out=tmp_path / name)
        length = {"short": 32, "long": 112, "too-long": 256}[name]
        assert f"set.student.max_length = {length}\n" in result.pipeline.read_text()
        truncated = [note for note in result.notes if "will be truncated" in note]
        assert bool(truncated) == (name == "too-long") and all(
            "100.0% of the training rows" in n for n in truncated
        )


def test_empty_cells_of_a_multilabel_column_are_unlabelled_rows(tmp_path: Path) -> None:
    """pandas writes missing values as empty cells; the labels are then unknown."""
    rows = [{"text": f"row number {n}", "tags": "|".join(["new", "hot"][: n % 3])} for n in range(60)]
    train = write(tmp_path / "train.csv", rows)
    notes = mtkd.init_pipeline(train, out=tmp_path / "job", name="tags").notes
    assert any("20 training rows without a label" in n and "[] for a row to which no" in n for n in notes)
    dev = write(tmp_path / "dev.csv", rows[:9])
    with pytest.raises(mtkd.UserError) as refused:
        mtkd.init_pipeline([train, dev], out=tmp_path / "job2", name="tags")
    assert refused.value.hint and refused.value.hint.startswith("write [] where no label applies")


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["reg_train.csv", "reg_dev.csv"], "reg"),
        (["my-data.v2.csv"], "my-data"),
        (["train-reg.csv"], "reg"),
        (["train.csv", "dev.csv"], "here"),
        (["train-00000-of-00002.csv"], "here"),
        (["data_train.csv"], "here"),
        (["nli.train.csv"], "nli-own"),
        (["constrained.csv"], "constrained"),
    ],
)
def test_the_task_is_named_after_its_files(files: list[str], name: str, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "here" / file, [{"text": f"row {file} {n}", "label": n % 2} for n in range(20)])
        for file in files
    ]
    assert mtkd.init_pipeline(paths, out=tmp_path / "job").task.name == name


def test_an_empty_list_of_files_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data is named"):
        mtkd.init_pipeline([], out=tmp_path / "job")
