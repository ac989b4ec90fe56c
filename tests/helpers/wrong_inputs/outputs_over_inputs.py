# ruff: noqa: E501
"""Outputs that are inputs of the same command, contain one, or lie inside one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.commands import distill, evaluate, generate, hsk, predict, refine
from wrong_inputs.tiny_inputs import POCKET, Case, TinyInputs, write_file


def _link(target: Path, link: Path) -> Path:
    link.symlink_to(target)
    return link


# The input, of which each case gets a copy, and the command. It is called with the tiny inputs, that copy, and the directory
# of the case.
OVERLAPS: dict[str, tuple[str, Callable[[TinyInputs, Path, Path], list[Any]]]] = {
    "refine encoder": ("teacher", lambda inputs, copied, directory: refine(copied, copied, "--overwrite")),
    "refine encoder in out": ("teacher", lambda inputs, copied, directory: refine(copied / "model", copied, "--overwrite")),
    "distill teacher": ("teacher", lambda inputs, copied, directory: distill(copied, copied, "--overwrite")),
    "distill teacher of a task": ("teacher", lambda inputs, copied, directory: distill(Path(f"rte={copied}"), copied, "--overwrite")),
    "distill teacher in out": ("teacher", lambda inputs, copied, directory: distill(copied / "model", copied, "--overwrite")),
    "distill teacher by link": ("teacher", lambda inputs, copied, directory: distill(_link(copied, directory / "link"), copied, "--overwrite")),
    "distill inside teacher": ("teacher", lambda inputs, copied, directory: distill(copied, copied / "student")),
    "distill init": ("student", lambda inputs, copied, directory: distill(inputs.teacher, copied, "--init", copied, "--overwrite")),
    "distill corpus": ("corpus", lambda inputs, copied, directory: distill(inputs.teacher, copied, "--corpus", copied, "--overwrite")),
    "distill store": ("store", lambda inputs, copied, directory: hsk(inputs, copied, "--store", copied, "--overwrite")),
    "finetune model": ("student", lambda inputs, copied, directory: ["finetune", "--model", copied, "--task", "rte", "--data", "pocket", "--out", copied, "--overwrite", "--limit", 8, "--eval-limit", 4, "--steps", 1]),
    "mask rows": ("rows", lambda inputs, copied, directory: ["augment", "mask", "--tasks", copied / "topics.toml", "--out", copied, "--overwrite"]),
    "predict model by link": ("student", lambda inputs, copied, directory: (_link(copied / "model/model.json", directory / "out.jsonl"), predict(copied, directory / "out"))[1]),
    "predict rows by link": ("rows", lambda inputs, copied, directory: (os.link(copied / "train.jsonl", directory / "out.jsonl"), predict(inputs.student, directory / "out", copied / "train.jsonl"))[1]),
    "report run.json": ("teacher", lambda inputs, copied, directory: ["report", "html", copied, "--out", copied / "run.json", "--overwrite"]),
    "predictions in run": ("student", lambda inputs, copied, directory: [*evaluate(copied, directory), "--predictions", copied / "predictions"]),
    "predictions over rows": ("rows", lambda inputs, copied, directory: [*evaluate(inputs.student, directory), "--predictions", write_file(directory, "f/rte/validation.parquet", "mine").parents[1]]),
    "json task": ("rows", lambda inputs, copied, directory: ["data", "check", "--tasks", copied / "topics.toml", "--json", copied / "topics.toml"]),
    "json rows of task": ("rows", lambda inputs, copied, directory: ["data", "check", "--tasks", copied / "topics.toml", "--json", copied / "train.jsonl"]),
    "json data of init": ("rows", lambda inputs, copied, directory: ["init", copied / "train.jsonl", "--out", directory / "out", "--json", copied / "train.jsonl"]),
    "json weights": ("student", lambda inputs, copied, directory: [*evaluate(copied, directory), "--json", copied / "model/model.safetensors"]),
    "json run.json": ("student", lambda inputs, copied, directory: [*evaluate(copied, directory), "--json", copied / "run.json"]),
    "json manifest": ("store", lambda inputs, copied, directory: ["store", "info", copied, "--json", copied / "manifest.json"]),
    "json pipeline": ("pipeline", lambda inputs, copied, directory: ["run", copied / "job.toml", "--dry-run", "--json", copied / "job.toml"]),
    "json pipeline.json": ("pipeline", lambda inputs, copied, directory: ["run", copied / "job.toml", "--dry-run", "--json", copied / "out/pipeline.json"]),
    "json text": ("texts", lambda inputs, copied, directory: generate("rules", copied / "text.txt", directory / "out", "--json", copied / "text.txt")),
    "json out": ("texts", lambda inputs, copied, directory: ["augment", "mask", *POCKET, "--limit", 8, "--out", directory / "out", "--json", directory / "out"]),
    "json in out": ("encoder", lambda inputs, copied, directory: refine(copied, directory / "out", "--json", directory / "out/run.json")),
}  # fmt: skip


def overlap_cases() -> Iterator[Case]:
    """Yield cases in which an output would replace or change an input."""
    for name, (item, command) in OVERLAPS.items():

        def make(inputs: TinyInputs, directory: Path, item=item, command=command) -> list[Any]:
            shutil.copytree(getattr(inputs, item), directory / item)
            return command(inputs, directory / item, directory)

        yield Case(f"overlap {name}", make)
