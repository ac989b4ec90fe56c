# ruff: noqa: E501
"""Commands with as few options as possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wrong_inputs.tiny_inputs import POCKET, TINY_BILSTM, TINY_HSK, TINY_T5, TINY_TRAINING, TinyInputs


def evaluate(path: Path, out: Path) -> list[Any]:
    return ["evaluate", "--model", path, "--data", "pocket", "--tasks", "rte", "--limit", 4]


def distill(path: Path, out: Path, *more: Any) -> list[Any]:
    small = ("--limit", 8, "--eval-limit", 4, "--steps", 1, "--batch", 4, *TINY_BILSTM)
    return ["distill", "mkd-lstm", *POCKET, "--teacher", path, "--out", out, *small, *more]


def hsk(inputs: TinyInputs, out: Path, *more: Any) -> list[Any]:
    words = (
        "--teacher",
        inputs.teacher,
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
Command = Callable[["TinyInputs", Path, Path], list[Any]]


COMMANDS: dict[str, Command] = {
    "refine": lambda inputs, at, out: refine(inputs.encoder, out),
    "distill": lambda inputs, at, out: distill(inputs.teacher, out),
    "finetune": lambda inputs, at, out: [
        "finetune", "--model", inputs.student, "--task", "rte", "--data", "pocket", "--out", out, "--limit", 8,
        "--eval-limit", 4, "--steps", 1,
    ],
    "evaluate": lambda inputs, at, out: evaluate(inputs.student, out),
    "predict": lambda inputs, at, out: predict(inputs.student, out),
    "mask": lambda inputs, at, out: ["augment", "mask", *POCKET, "--limit", 8, "--out", out],
    "replace": lambda inputs, at, out: ["augment", "replace", *POCKET, "--limit", 8, "--tagger", "none", "--out", out],
    "qgen": lambda inputs, at, out: generate(inputs.generator, inputs.texts, out),
    "qtrain": lambda inputs, at, out: [
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--model", "scratch", "--out", out,
        "--limit", 16, "--steps", 1, "--batch", 8, "--max-input", 64, "--max-output", 12, *TINY_T5,
    ],
    "compare": lambda inputs, at, out: [
        "compare", inputs.grid / "grid.toml", "--data", "pocket", "--teacher", inputs.teacher, "--out", out, "--dry-run",
    ],
    "store": lambda inputs, at, out: [
        "store", "plan", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", inputs.teacher, *TINY_HSK,
    ],
    "bench": lambda inputs, at, out: ["bench", "inference", "--model", inputs.student, "--rounds", 1, "--batch", 2, "--seq-len", 8],
    "suggest": lambda inputs, at, out: ["suggest", "--teacher", inputs.encoder, "--seq-len", 8, "--batch", 2, "--rounds", 1, "--target-speedup", 2],
    "check": lambda inputs, at, out: ["data", "check", *POCKET],
    "init": lambda inputs, at, out: ["init", inputs.rows / "train.jsonl", "--out", out],
    "report": lambda inputs, at, out: ["report", "html", inputs.teacher, "--out", out.with_suffix(".html")],
}  # fmt: skip
