"""Hand-made runs for the HTML report, and its parsed page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from run_records import finished_record

from mtkd.model_files import FORMAT
from tasks.data.loading import digest_rows, load_rows
from tasks.data.sources import FilesSource
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

ROWS, SCRIPT = 400, "<script>alert(1)</script>"
LABELS = (SCRIPT, 'b & "c"')
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Parsed(HTMLParser):
    """A page: its tags and attributes, text, and tables as lists of rows of cells; closed tags must match."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def named(self, head: str) -> dict[str, dict[str, str]]:
        """The first table whose heading has a column `head`: first cell of a row -> heading -> cell."""
        table = next(table for table in self.tables if head in table[0])
        rows = [[" ".join(cell.split()) for cell in row] for row in table]
        return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}


def check_alone(page: Parsed, html: str) -> None:
    """Check that the page runs no script and refers to no other file."""
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "use", "image", "base"}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("src", "srcset", "action", "data") and "http" not in str(value)
            assert "href" not in name or str(value).startswith("#")
    (style,) = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    assert "url(" not in style and "@import" not in style
    anchors = {values["id"] for _, values in page.tags if "id" in values}
    assert {str(v["href"])[1:] for tag, v in page.tags if tag == "a"} <= anchors
    for number, (tag, values) in enumerate(page.tags):
        if tag == "svg":
            assert values["role"] == "img" and [t for t, _ in page.tags[number + 1 : number + 3]] == [
                "title",
                "desc",
            ]
        if tag == "th":
            assert values["scope"] in ("row", "col")


def read(path: Path) -> tuple[Parsed, str]:
    html = path.read_text(encoding="utf-8")
    page = Parsed(html)
    check_alone(page, html)
    return page, html


def predicted(task: Task, right: float, seed: int) -> RowPredictions:
    """Return predictions of which about the fraction `right` is correct, with random probabilities."""
    rows = load_rows(FilesSource(), task, "validation")
    rng = np.random.default_rng(seed)
    answers = np.where(rng.random(ROWS) < right, rows.labels, 1 - rows.labels)
    chance = rng.uniform(0.5, 1, ROWS)
    probabilities = np.where(answers[:, None] == np.arange(2), chance[:, None], 1 - chance[:, None])
    return RowPredictions(rows.uids, rows.labels, answers, probabilities=probabilities)


def numbers(cell: str) -> list[float]:
    """Return the numbers with a decimal point in a cell of a table."""
    return [float(part) for part in re.findall(r"-?\+?\d+\.\d", cell)]


def kept(run: Path) -> RowPredictions:
    return RowPredictions.read(run / "predictions" / "topics" / "validation.parquet")


def write_run(
    directory: Path,
    task: Task,
    rows: RowPredictions | None,
    command: str = "distill",
    *,
    primary: float = 0.5,
    seed: int = 0,
    supervision: str = "teacher",
    **facts: Any,
) -> Path:
    """Write a finished run with the files that a report reads."""
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "model.safetensors").touch()
    description = {"format": FORMAT, "encoder": {}, "tasks": [task.to_json()]}
    (directory / "model" / "model.json").write_text(json.dumps(description))
    if rows is not None:
        rows.write(directory / "predictions" / task.name / "validation.parquet", task.name, "validation")
        primary = score(task, rows.predictions, rows.labels).primary
    settings = {"name": "some-recipe", "supervision": supervision, "train": {"seed": seed}}
    identity = {"command": command, "data": None, "eval_limit": None, "model": "m", "settings": settings}
    digest = digest_rows(load_rows(FilesSource(), task, "validation")) if task.files else "none"
    values = {"rows": ROWS, "metrics": {"accuracy": primary}, "loss": 0.5}
    scores = {"task": task.name, "split": "validation", "primary": primary, "majority": 0.5, **values}
    record = finished_record(
        identity=identity,
        data={f"{task.name}/validation": digest},
        rows={task.name: {"train": 12345, "unlabelled": 0, "validation": ROWS}},
        parameters={"total": 2_000_000, "embeddings": 500_000, "without_embeddings": 1_500_000},
        scores={f"{task.name}/validation": scores},
        training={"steps": 40, "seconds": 1.0},
    )
    (directory / "run.json").write_text(json.dumps(record | facts))
    log = [{"step": step, "loss": 1 / step} for step in (1, 20, 40)]
    log += [{"step": step, f"score/{task.name}/validation": step / 100} for step in (20, 40)]
    (directory / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return directory
