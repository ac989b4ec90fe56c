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


def _link(to: Path, path: Path) -> Path:
    path.symlink_to(to)
    return path


# The input, of which each case gets a copy, and the command, given that copy.
OVERLAPS: dict[str, tuple[str, Callable[[TinyInputs, Path, Path], list[Any]]]] = {
    "refine encoder": ("teacher", lambda i, d, at: refine(d, d, "--overwrite")),
    "refine encoder in out": ("teacher", lambda i, d, at: refine(d / "model", d, "--overwrite")),
    "distill teacher": ("teacher", lambda i, d, at: distill(d, d, "--overwrite")),
    "distill teacher of a task": ("teacher", lambda i, d, at: distill(Path(f"rte={d}"), d, "--overwrite")),
    "distill teacher in out": ("teacher", lambda i, d, at: distill(d / "model", d, "--overwrite")),
    "distill teacher by link": ("teacher", lambda i, d, at: distill(_link(d, at / "link"), d, "--overwrite")),
    "distill inside teacher": ("teacher", lambda i, d, at: distill(d, d / "student")),
    "distill init": ("student", lambda i, d, at: distill(i.teacher, d, "--init", d, "--overwrite")),
    "distill corpus": ("corpus", lambda i, d, at: distill(i.teacher, d, "--corpus", d, "--overwrite")),
    "distill store": ("store", lambda i, d, at: hsk(i, d, "--store", d, "--overwrite")),
    "finetune model": ("student", lambda i, d, at: ["finetune", "--model", d, "--task", "rte", "--data", "pocket", "--out", d, "--overwrite", "--limit", 8, "--eval-limit", 4, "--steps", 1]),
    "mask rows": ("rows", lambda i, d, at: ["augment", "mask", "--tasks", d / "topics.toml", "--out", d, "--overwrite"]),
    "predict model by link": ("student", lambda i, d, at: (_link(d / "model/model.json", at / "out.jsonl"), predict(d, at / "out"))[1]),
    "predict rows by link": ("rows", lambda i, d, at: (os.link(d / "train.jsonl", at / "out.jsonl"), predict(i.student, at / "out", d / "train.jsonl"))[1]),
    "report run.json": ("teacher", lambda i, d, at: ["report", "html", d, "--out", d / "run.json", "--overwrite"]),
    "predictions in run": ("student", lambda i, d, at: [*evaluate(d, at), "--predictions", d / "predictions"]),
    "predictions over rows": ("rows", lambda i, d, at: [*evaluate(i.student, at), "--predictions", write_file(at, "f/rte/validation.parquet", "mine").parents[1]]),
    "json task": ("rows", lambda i, d, at: ["data", "check", "--tasks", d / "topics.toml", "--json", d / "topics.toml"]),
    "json rows of task": ("rows", lambda i, d, at: ["data", "check", "--tasks", d / "topics.toml", "--json", d / "train.jsonl"]),
    "json data of init": ("rows", lambda i, d, at: ["init", d / "train.jsonl", "--out", at / "out", "--json", d / "train.jsonl"]),
    "json weights": ("student", lambda i, d, at: [*evaluate(d, at), "--json", d / "model/model.safetensors"]),
    "json run.json": ("student", lambda i, d, at: [*evaluate(d, at), "--json", d / "run.json"]),
    "json manifest": ("store", lambda i, d, at: ["store", "info", d, "--json", d / "manifest.json"]),
    "json pipeline": ("pipeline", lambda i, d, at: ["run", d / "job.toml", "--dry-run", "--json", d / "job.toml"]),
    "json pipeline.json": ("pipeline", lambda i, d, at: ["run", d / "job.toml", "--dry-run", "--json", d / "out/pipeline.json"]),
    "json text": ("texts", lambda i, d, at: generate("rules", d / "text.txt", at / "out", "--json", d / "text.txt")),
    "json out": ("texts", lambda i, d, at: ["augment", "mask", *POCKET, "--limit", 8, "--out", at / "out", "--json", at / "out"]),
    "json in out": ("encoder", lambda i, d, at: refine(d, at / "out", "--json", at / "out/run.json")),
}  # fmt: skip


def overlap_cases() -> Iterator[Case]:
    for name, (item, words) in OVERLAPS.items():

        def make(inputs: TinyInputs, at: Path, i=item, w=words) -> list[Any]:
            shutil.copytree(getattr(inputs, i), at / i)
            return w(inputs, at / i, at)

        yield Case(f"overlap {name}", make)
