"""The HTML report: pages are parsed and compared with the records of runs and with scipy's bootstrap."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from report_runs import ROWS, SCRIPT, Parsed, kept, numbers, predicted, read, write_run
from scipy import stats

import mtkd as library
from mtkd.evaluation.baselines import CONSTANT
from mtkd.evaluation.class_report import class_report
from mtkd.model_files import FORMAT
from mtkd.reporting.scores import reliability
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Parsed, str]:
    return read(library.report_html([runs], tmp_path_factory.mktemp("page") / "report.html", examples=5))


def test_scores_match_the_records_and_intervals_match_scipy(page: Any, runs: Path, task: Task) -> None:
    table = page[0].named("topics")
    names = {"teacher": "teacher", "student": "student", "labels": "labels", "tuned/topics": "tuned/topics"}
    for shown, place in names.items():
        record = json.loads((runs / place / "run.json").read_text())
        rows = kept(runs / place)
        right = (rows.predictions == rows.labels).astype(float)
        expected = stats.bootstrap((right,), np.mean, method="percentile", n_resamples=5000, rng=0)
        low, high = expected.confidence_interval
        (name,) = [name for name in table if name.split()[0] == shown]
        found = numbers(table[name]["topics"])
        assert found[0] == round(100 * record["scores"]["topics/validation"]["primary"], 1)
        assert found[1:] == pytest.approx([100 * low, 100 * high], abs=0.6)
    assert numbers(table[CONSTANT]["topics"])[0] == 50.0
    assert table["student"]["topics"] in table["student"].values()


def test_differences_are_paired_and_marked(page: Any, runs: Path) -> None:
    parts = [
        RowPredictions.read(runs / n / "predictions/topics/validation.parquet") for n in ("student", "labels")
    ]
    right = [(part.predictions == part.labels).astype(float) for part in parts]

    def gap(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return a.mean(axis) - b.mean(axis)

    expected = stats.bootstrap(right, gap, paired=True, method="percentile", n_resamples=5000, rng=0)
    tables = [table for table in page[0].tables if table[0] == ["model", "topics"]][1:]
    to_labels, to_teacher, to_constant = ({row[0]: row[1] for row in table[1:]} for table in tables)
    assert "▲ better" in to_labels["student"] and "▼ worse" in to_labels[CONSTANT]
    assert "= tied" in to_teacher["tuned/topics"] and "▲ better" in to_constant["labels"]
    found = numbers(to_labels["student"])
    assert found[0] == pytest.approx(100 * (right[0].mean() - right[1].mean()), abs=0.05)
    assert found[1:] == pytest.approx([100 * end for end in expected.confidence_interval], abs=0.7)
    assert f"{found[0]:.1f} points above labels" in page[0].text


def test_texts_from_the_data_are_escaped(page: Any) -> None:
    assert SCRIPT not in page[1] and "&lt;script&gt;alert(1)&lt;/script&gt;" in page[1]
    assert f"{SCRIPT} row " in page[0].text, "the texts of examples"
    assert any(row[0].strip() == SCRIPT for table in page[0].tables for row in table), "labels"


def test_examples_are_the_rows_with_the_largest_difference(page: Any, runs: Path) -> None:
    student, teacher = (
        RowPredictions.read(runs / name / "predictions/topics/validation.parquet")
        for name in ("student", "teacher")
    )
    assert student.probabilities is not None and teacher.probabilities is not None
    distance = np.abs(student.probabilities[:, 0] - teacher.probabilities[:, 0])
    distance[student.predictions == teacher.predictions] = -1
    rows = np.argsort(-distance, kind="stable")[:5]
    section = page[1].split("student and teacher")[1]
    shown = [int(number) for number in re.findall(r"row (\d+) &amp; more", section)][:5]
    assert shown == rows.tolist()
    differ = int((student.predictions != teacher.predictions).sum())
    assert f"5 of {differ} rows, ordered by the largest difference" in " ".join(section.split())


def test_calibration_and_confusion_match_the_predictions(page: Any, runs: Path, task: Task) -> None:
    rows = kept(runs / "labels")
    assert rows.probabilities is not None
    confidence, right = rows.probabilities.max(1), rows.predictions == rows.labels
    expected = 0.0
    for low in np.arange(10) / 10:
        inside = [n for n in range(ROWS) if low <= confidence[n] < low + 0.1]
        if inside:
            gap = np.mean([right[n] for n in inside]) - np.mean([confidence[n] for n in inside])
            expected += len(inside) / ROWS * abs(gap)
    assert reliability(confidence, right).error == pytest.approx(expected)
    assert f"labels {100 * expected:.1f}%" in page[0].text
    confusion = class_report(task, rows.predictions, rows.labels).confusion
    cells = [[row[1:] for row in table[1:]] for table in page[0].tables if table[0][0] == "label"]
    assert [[str(n) for n in row] for row in confusion] in cells
    assert reliability(np.array([1.0]), np.array([True])).bins == [(1.0, 1.0, 1.0)]


def test_the_facts_of_the_runs_are_on_the_page(page: Any, runs: Path) -> None:
    digest = json.loads((runs / "student/run.json").read_text())["data"]["topics/validation"]
    assert digest in page[0].text and "mtkd 1.2.3" in page[0].text and str(runs / "student") in page[0].text
    assert page[0].named("run")["student"]["topics"].startswith("12,345")
    assert page[0].named("parameters")["student"]["without embeddings"] == "1.5M"
    curves = [desc for desc in re.findall("<desc>(.*?)</desc>", page[1]) if "loss: 0.025 at step 40" in desc]
    assert len(curves) == 4, "a curve for each run"


def test_missing_data_or_predictions_are_explained(task: Task, tmp_path: Path) -> None:
    moved = replace(task, files={"validation": str(tmp_path / "gone.jsonl")})
    rows = predicted(task, 0.8, 1)
    for name, found in (("one", replace(rows, probabilities=None)), ("other", predicted(task, 0.6, 2))):
        write_run(tmp_path / "runs" / name, task, found)
        description = {"format": FORMAT, "encoder": {}, "tasks": [moved.to_json()]}
        (tmp_path / "runs" / name / "model" / "model.json").write_text(json.dumps(description))
    page, html = read(library.report_html([tmp_path / "runs"], tmp_path / "a.html"))
    assert "The texts are not shown: " in page.text and "topics/validation/" in page.text
    assert "one recorded no probabilities" in page.text and "the order of the data" in page.text
    other = tmp_path / "other.jsonl"
    other.write_text(Path(task.files["validation"]).read_text().replace("row 7 ", "row seven "))
    (tmp_path / "gone.jsonl").write_text(other.read_text())
    page, _ = read(library.report_html([tmp_path / "runs"], tmp_path / "b.html"))
    assert "have changed since the run" in page.text and "row 9" not in page.text

    write_run(tmp_path / "bare", task, None, primary=0.625)
    (tmp_path / ".c.html.0123456789abcdef.tmp").touch()  # as a killed process leaves one
    page, html = read(library.report_html([tmp_path / "bare"], tmp_path / "c.html"))
    assert not list(tmp_path.glob(".c.html*"))
    table = page.named("topics")
    assert (table["bare student"]["topics"], table[CONSTANT]["topics"]) == ("62.5", "50.0")
    assert "Calibration" not in html and "disagree" not in html and "Differences" not in html


def test_a_checkpoint_is_scored_for_the_report(
    save_checkpoint: Callable[..., Path], tiny_teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    place = save_checkpoint("Bert", id2label={0: "negative", 1: "positive"})
    data = {"data": "pocket", "tasks": "sst2", "limit": 16, "eval_limit": 16}
    settings = {"student.bilstm.hidden_size": 8, "student.bilstm.projection_size": 8}
    student = library.distill(
        "mkd-lstm", teacher=place, out=tmp_path / "run", steps=1, settings=settings, **data
    )
    answered = mtkd("report", "html", student.path, "--out", tmp_path / "a.html", "--teacher", place)
    assert answered.code == 0, answered.err
    page, html = read(tmp_path / "a.html")
    (cells,) = [cells for name, cells in page.named("sst2").items() if name == f"{place} teacher"]
    expected = library.evaluate(place, "pocket", "sst2", limit=16)["sst2"].primary
    assert numbers(cells["sst2"])[0] == round(100 * expected, 1)
    assert f"Differences from {place}" in html
    run = mtkd("report", "html", student.path, "--out", tmp_path / "b.html", "--teacher", tiny_teacher)
    assert run.code == 2 and f"--teacher {tiny_teacher} is not a fine-tuned" in run.err
    several = mtkd("report", "html", tiny_teacher, "--out", tmp_path / "b.html", "--teacher", place)
    assert several.code == 2 and "is for one task, but the runs are for" in several.err


def test_the_report_shows_real_runs_of_every_task_type(
    tiny_teacher: Path,
    span_teacher: Path,
    tmp_path: Path,
    mtkd: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    other = tmp_path / "other"
    shutil.copytree(span_teacher, other)
    (other / "digests.json").unlink()
    file = other / "predictions" / "squad_v2" / "validation.parquet"
    rows = RowPredictions.read(file)
    changed = np.array([*rows.predictions[:-1], "another <answer>"], dtype=object)
    by_row = {name: np.append(values[:-1], 1 - values[-1]) for name, values in rows.by_row.items()}
    replace(rows, predictions=changed, by_row=by_row).write(file, "squad_v2", "validation")
    out = tmp_path / "page.html"
    answered = mtkd(
        "report", "html", tiny_teacher, span_teacher, other, "--out", out, "--bench", "--examples", 3
    )
    assert answered.code == 0, answered.err
    page, _ = read(out)
    times = [numbers(cells["ms per batch"]) for cells in page.named("ms per batch").values()]
    assert len(times) == 3 and all(time[0] > 0 for time in times)
    table = page.named("stsb")
    for place in (tiny_teacher, span_teacher):
        record = json.loads((place / "run.json").read_text())
        (line,) = [cells for name, cells in table.items() if name.split()[0].split("/")[-1] == place.name]
        for scores in record["scores"].values():
            found = numbers(line[scores["task"]])
            assert found[0] == round(100 * scores["primary"], 1) and found[1] <= found[0] <= found[2]
    constant = {s["task"]: s["majority"] for s in record["scores"].values()}
    assert numbers(table[CONSTANT]["squad_v2"])[0] == round(100 * constant["squad_v2"], 1)
    answers = RowPredictions.read(tiny_teacher / "predictions" / "sst2" / "validation.parquet")
    assert answers.probabilities is not None
    np.testing.assert_array_equal(answers.probabilities.argmax(1), answers.predictions)
    page, _ = read(library.report_html([span_teacher, other], tmp_path / "spans.html"))
    assert "another <answer>" in page.text and "1 of 32 rows" in page.text
    first = out.read_bytes()
    library.report_html([tiny_teacher], out, overwrite=True)
    again = out.read_bytes()
    library.report_html([tiny_teacher], out, overwrite=True)
    assert out.read_bytes() == again != first, "the same page for the same runs"


def test_multilabel_tasks_are_reported(tmp_path: Path) -> None:
    task = Task("tags", "multilabel", ("text",), labels=("a", "b", "c"))
    labels = np.array([[1.0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
    uids = pa.array([f"tags/validation/{n}" for n in range(4)])
    answers = {"one": labels, "other": np.array([[1.0, 0, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])}
    for name, found in answers.items():
        write_run(tmp_path / name, task, RowPredictions(uids, labels, found, probabilities=found))
    page, html = read(library.report_html([tmp_path], tmp_path / "a.html"))
    shown = " ".join(page.text.split("2 of 2 rows, ordered by")[1].split())
    assert shown.startswith("the most labels that differ. The texts are not shown")
    first, second = shown.split("tags/validation/")[1:3]
    assert first.startswith("2 label none one none ✓ right other a, b, c ✗ wrong"), "three labels differ"
    assert second.startswith("1 label b one b ✓ right other a, b ✗ wrong")
    assert "Calibration" not in html
