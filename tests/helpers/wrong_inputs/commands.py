# ruff: noqa: E501
"""Commands in their smallest form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wrong_inputs.lab import POCKET, TINY_BILSTM, TINY_HSK, TINY_T5, TINY_TRAINING, Lab


def evaluate(place: Path, out: Path) -> list[Any]:
    return ["evaluate", "--model", place, "--data", "pocket", "--tasks", "rte", "--limit", 4]


def distill(place: Path, out: Path, *more: Any) -> list[Any]:
    small = ("--limit", 8, "--eval-limit", 4, "--steps", 1, "--batch", 4, *TINY_BILSTM)
    return ["distill", "mkd-lstm", *POCKET, "--teacher", place, "--out", out, *small, *more]


def hsk(lab: Lab, out: Path, *more: Any) -> list[Any]:
    words = (
        "--teacher",
        lab.teacher,
        "--out",
        out,
        "--limit",
        32,
        "--eval-limit",
        4,
        "--steps",
        1,
        *TINY_HSK,
    )
    return ["distill", "hsk-tinybert-4", *POCKET, *words, *more]


def refine(encoder: Path, out: Path, *more: Any) -> list[Any]:
    return ["refine", *POCKET, "--encoder", encoder, "--out", out, *TINY_TRAINING, "--steps", 1, *more]


def predict(model: Path, out: Path, source: Path | None = None) -> list[Any]:
    if source is None:
        source = out.with_name("rows.jsonl")
        source.write_text('{"sentence1": "A man sleeps.", "sentence2": "A man rests."}\n')
    return ["predict", "--model", model, "--task", "rte", "--in", source, "--out", out.with_suffix(".jsonl")]


def generate(model: Path | str, text: Path, out: Path, *more: Any) -> list[Any]:
    return ["augment", "questions", "generate", "--model", model, "--text", text, "--out", out, *more]


# JSON files: the input, the file in it, and the commands that read it.
Command = Callable[["Lab", Path, Path], list[Any]]


COMMANDS: dict[str, Command] = {
    "refine": lambda lab, at, out: refine(lab.encoder, out),
    "distill": lambda lab, at, out: distill(lab.teacher, out),
    "finetune": lambda lab, at, out: [
        "finetune", "--model", lab.student, "--task", "rte", "--data", "pocket", "--out", out, "--limit", 8,
        "--eval-limit", 4, "--steps", 1,
    ],
    "evaluate": lambda lab, at, out: evaluate(lab.student, out),
    "predict": lambda lab, at, out: predict(lab.student, out),
    "mask": lambda lab, at, out: ["augment", "mask", *POCKET, "--limit", 8, "--out", out],
    "replace": lambda lab, at, out: ["augment", "replace", *POCKET, "--limit", 8, "--out", out],
    "qgen": lambda lab, at, out: generate(lab.generator, lab.texts, out),
    "qtrain": lambda lab, at, out: [
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--out", out, "--limit", 16,
        "--steps", 1, "--batch", 8, "--max-input", 64, "--max-output", 12, *TINY_T5,
    ],
    "compare": lambda lab, at, out: [
        "compare", lab.grid / "grid.toml", "--data", "pocket", "--teacher", lab.teacher, "--out", out, "--dry-run",
    ],
    "store": lambda lab, at, out: [
        "store", "plan", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", lab.teacher, *TINY_HSK,
    ],
    "bench": lambda lab, at, out: ["bench", "inference", "--model", lab.student, "--rounds", 1, "--batch", 2, "--seq-len", 8],
    "suggest": lambda lab, at, out: ["suggest", "--teacher", lab.encoder, "--seq-len", 8, "--batch", 2, "--rounds", 1, "--target-speedup", 2],
    "check": lambda lab, at, out: ["data", "check", *POCKET],
    "init": lambda lab, at, out: ["init", lab.rows / "train.jsonl", "--out", out],
    "report": lambda lab, at, out: ["report", "html", lab.teacher, "--out", out.with_suffix(".html")],
}  # fmt: skip
