"""Compare: run a grid of cells x tasks x seeds, each run as a separate command, and collect one table."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtkd.evaluation.inference_bench import BenchSettings, InferenceResult, bench_inference
from mtkd.grids import Bench, Cell, Grid
from mtkd.models.saved_model import is_saved_model, read_saved
from mtkd.training.run_directory import RUN_FILE
from tasks.errors import UserError
from tasks.files import digest_bytes, read_json, write_json, write_text

_COMMAND, _LOG = "command.json", "log.txt"


@dataclass(frozen=True)
class GridInputs:
    """The inputs of every run of a grid.

    Attributes:
        data: one source, or several, of which each split is read from the first that has it.
        teacher: a run of refine, or an encoder; `{task}` in it is replaced by the task.
        text: plain text for cells with a `first` run.
        base: the teacher of these `first` runs.
        store: a knowledge store instead of the teacher; `{task}` as in `teacher`.
        corpus: an augmented corpus for cells that use one; `{task}` as in `teacher`.
        more: further arguments of the command line, such as --limit 1000.
    """

    data: str | Sequence[str]
    teacher: str | None
    out: Path
    text: Path | None = None
    base: str | None = None
    store: str | None = None
    more: tuple[str, ...] = ()
    corpus: str | None = None


@dataclass(frozen=True)
class Job:
    """One command and its run directory."""

    words: tuple[str, ...]
    out: Path

    @property
    def finished(self) -> bool:
        """True if the directory holds a finished run of exactly this command."""
        record = self.out / RUN_FILE
        if not (record.is_file() and self._command_file.is_file()):
            return False
        return read_json(self._command_file) == list(self.words) and read_json(record)["status"] == "finished"

    @property
    def _command_file(self) -> Path:
        return self.out.with_name(f"{self.out.name}.{_COMMAND}")

    @property
    def log(self) -> Path:
        """The output of the command."""
        return self.out.with_name(f"{self.out.name}.{_LOG}")

    def run(self) -> str | None:
        """Run the command; returns its error message if it failed, else None."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w", encoding="utf-8") as log:
            command = [sys.executable, "-m", "mtkd.cli.main", *self.words]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.wait()  # it received Ctrl-C too, and writes a checkpoint
                raise
        if code == 0:
            write_json(self._command_file, list(self.words))
            return None
        if code in (130, 143):
            raise KeyboardInterrupt
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return next((line for line in lines if line.startswith("error: ")), (lines or ["no output"])[-1])


@dataclass
class Row:
    """The results of the runs of one cell.

    Attributes:
        scores: task -> score of each seed.
        failed: task and seed -> error message.
        parameters: parameters of the student without embeddings.
        seconds: training time of each run.
        speed: batch size -> inference speed relative to the first cell.
        ms: batch size -> inference time in milliseconds.
    """

    name: str
    scores: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    parameters: int | None = None
    seconds: list[float] = field(default_factory=list)
    speed: dict[int, float] = field(default_factory=dict)
    ms: dict[int, float] = field(default_factory=dict)

    def mean(self, task: str) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.scores[task]) if self.scores.get(task) else math.nan

    def spread(self, task: str) -> float | None:
        """The standard deviation over seeds; None if there are fewer than two."""
        scores = self.scores.get(task, [])
        return statistics.stdev(scores) if len(scores) > 1 else None

    def average(self, tasks: list[str]) -> float:
        """The mean over tasks; NaN if a task is missing."""
        return statistics.fmean([self.mean(task) for task in tasks]) if tasks else math.nan


@dataclass(frozen=True)
class Table:
    """A grid's results.

    Attributes:
        tasks: the scored tasks; tasks that were trained together are listed separately.
        commands: cell -> the commands of its runs.
    """

    grid: Grid
    tasks: list[str]
    rows: list[Row]
    commands: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON values; missing values are null."""
        rows = [
            {
                **vars(row),
                "mean": {task: row.mean(task) for task in self.tasks},
                "spread": {task: row.spread(task) for task in self.tasks},
                "average": row.average(self.tasks),
            }
            for row in self.rows
        ]
        plain = {"title": self.grid.title, "tasks": self.tasks, "rows": rows, "commands": self.commands}
        return json.loads(json.dumps(plain).replace("NaN", "null"))

    def columns(self) -> list[str]:
        """The column headings."""
        batches = [f"speed at {batch}" for batch in self.grid.bench.batches]
        return ["", *self.tasks, "average", "parameters", "training", *batches]

    def lines(self) -> list[list[str]]:
        """The rows as text, scores in percent with the spread over seeds."""
        return [
            [
                row.name,
                *(_percent(row.mean(task), row.spread(task)) for task in self.tasks),
                _percent(row.average(self.tasks), None),
                "-" if row.parameters is None else f"{row.parameters / 1e6:.1f}M",
                f"{statistics.fmean(row.seconds):.0f} s" if row.seconds else "-",
                *(f"{row.speed[b]:.2f}x" if b in row.speed else "-" for b in self.grid.bench.batches),
            ]
            for row in self.rows
        ]

    def markdown(self) -> str:
        """The table as Markdown."""
        head = self.columns()
        body = [head, ["---"] * len(head), *self.lines()]
        return f"## {self.grid.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in body) + "\n"


def _percent(value: float, spread: float | None) -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def jobs(grid: Grid, inputs: GridInputs) -> Iterator[tuple[str, str, int, list[Job]]]:
    """Yield (cell, tasks, seed, jobs to run in order) for every run of a grid.

    Raises:
        UserError: a cell needs plain text or a corpus, and none is given.
    """
    _check_corpus(grid, inputs)
    for seed in grid.seeds:
        for name, cell in grid.cells.items():
            first = _text_job(cell, inputs, seed)
            for spec in cell.tasks or grid.tasks:
                out = inputs.out / "runs" / _file_name(name) / f"{_file_name(spec)}-{seed}"
                words = ["distill", grid.recipe_of(name), *_sources(inputs.data), "--tasks", spec]
                corpus = inputs.corpus if cell.corpus else None
                options = (("--teacher", inputs.teacher), ("--store", inputs.store), ("--corpus", corpus))
                for option, path in options:
                    words += [option, path.replace("{task}", spec)] if path else []
                words += ["--seed", str(seed)]
                words += [*inputs.more, *_sets(grid.set | cell.set), "--out", str(out)]
                words += ["--init", str(first.out)] if first else []
                yield name, spec, seed, [*([first] if first else []), Job(tuple(words), out)]


def _sources(data: str | Sequence[str]) -> list[str]:
    """The words of a command that name its data."""
    sources = [data] if isinstance(data, str) else data
    return [word for source in sources for word in ("--data", source)]


def _check_corpus(grid: Grid, inputs: GridInputs) -> None:
    wants = next((name for name, cell in grid.cells.items() if cell.corpus), None)
    if wants is not None and inputs.corpus is None:
        raise UserError(
            f"the cell {wants!r} trains on an augmented corpus, but none is given",
            hint=f"pass `corpus=DIR` made by mtkd augment, or leave the cell out with `without={wants}`",
        )


def _text_job(cell: Cell, inputs: GridInputs, seed: int) -> Job | None:
    """The run on plain text that a cell starts from; cells with the same settings share it."""
    if cell.first is None:
        return None
    if inputs.text is None:
        raise UserError("this grid starts students from plain text", hint="pass `text=FILE` with plain text")
    base = inputs.base or inputs.teacher
    if base is None:
        raise UserError("this grid starts students from plain text", hint="pass their teacher as `base=NAME`")
    if inputs.base is None and is_saved_model(Path(base)):
        base = read_saved(Path(base)).info.base or base
    words = ["distill", cell.first.recipe, "--text", str(inputs.text), "--teacher", base]
    words += ["--seed", str(seed), *_sets(cell.first.set)]
    out = inputs.out / "first" / f"{cell.first.recipe}-{digest_bytes(*words)[:12]}"
    return Job((*words, "--out", str(out)), out)


def run_grid(grid: Grid, inputs: GridInputs, say: Callable[[str], None]) -> Table:
    """Run the unfinished runs of a grid and collect the table; a failed run does not stop the others.

    Args:
        say: called with a line before each run, and with error messages.

    Returns:
        The table, which is also written to `out` as compare.json and compare.md.

    Raises:
        UserError: an input that a cell needs is missing.
    """
    planned = list(jobs(grid, inputs))
    rows = {name: Row(name) for name in grid.cells}
    models: dict[str, Path] = {}
    commands: dict[str, list[str]] = {name: [] for name in grid.cells}
    broken: dict[Path, str] = {}
    for number, (name, spec, seed, chain) in enumerate(planned, 1):
        commands[name] += [f"mtkd {shlex.join(job.words)}" for job in chain]
        what = f"[{number}/{len(planned)}] {name}, {spec}, seed {seed}"
        for job in chain:
            if not job.finished and job.out not in broken:
                say(f"{what}: mtkd {shlex.join(job.words)}")
                if (problem := job.run()) is not None:
                    broken[job.out] = problem
            if job.out in broken:
                say(f"{what} failed: {broken[job.out]} ({job.log})")
                rows[name].failed[f"{spec}, seed {seed}"] = broken[job.out]
                break
        else:
            _collect(rows[name], read_json(chain[-1].out / RUN_FILE))
            models.setdefault(name, chain[-1].out)
    _time_students(grid.bench, models, rows)
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row.scores))
    table = Table(grid, tasks, list(rows.values()), commands)
    inputs.out.mkdir(parents=True, exist_ok=True)
    write_json(inputs.out / "compare.json", table.to_json())
    write_text(inputs.out / "compare.md", table.markdown())
    return table


def _collect(row: Row, record: dict[str, Any]) -> None:
    by_task: dict[str, list[float]] = {}
    for scores in record["scores"].values():
        by_task.setdefault(scores["task"], []).append(scores["primary"])
    for task, values in by_task.items():
        row.scores.setdefault(task, []).append(statistics.fmean(values))
    row.parameters = record["parameters"]["without_embeddings"]
    training = record["training"]
    parts = [training] if "seconds" in training else training.values()
    row.seconds.append(sum(part["seconds"] for part in parts))


def _time_students(bench: Bench, models: dict[str, Path], rows: dict[str, Row]) -> None:
    """Time one student of each shape; cells whose students have the same shape share the result."""
    shapes = {
        name: json.dumps(read_saved(path).encoder_json, sort_keys=True) for name, path in models.items()
    }
    chosen = {shape: name for name, shape in reversed(shapes.items())}
    for batch in bench.batches if models else ():
        timed: dict[str, InferenceResult] = {
            result.name: result
            for result in bench_inference(
                {name: models[name] for name in sorted(chosen.values(), key=list(models).index)},
                BenchSettings(bench.seq_len, batch, bench.rounds),
            )
        }
        for name, shape in shapes.items():
            result = timed[chosen[shape]]
            rows[name].speed[batch], rows[name].ms[batch] = result.speed, result.ms


def _sets(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={_toml(value)}")]


def _toml(value: Any) -> str:
    """A value in inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _file_name(name: str) -> str:
    """A name that is safe as a file name."""
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-")
    return kept if kept == name else f"{kept}-{digest_bytes(name)[:6]}"
