# ruff: noqa: E501
"""Commands with as few options as possible.

Each function returns the arguments of a command, the command's name first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wrong_inputs.tiny_inputs import ONE_STEP, POCKET, TINY_BILSTM, TINY_HSK, TINY_T5, TinyInputs


def evaluate(model: Path, out: Path) -> list[Any]:
    return ["evaluate", "--model", model, "--data", "pocket", "--tasks", "rte", "--limit", 4]


def without_option(words: Sequence[Any], flag: str) -> list[Any]:
    """Return a command without an option that has one value, if the command has it."""
    place = words.index(flag) if flag in words else len(words)
    kept = [*words[:place], *words[place + 2 :]]
    return [word for word in kept if not str(word).startswith(f"{flag}=")]


def distill(teacher: Path, out: Path, *more: Any) -> list[Any]:
    small: Sequence[Any] = ("--limit", 8, "--eval-limit", 4, "--steps", 1, "--batch", 4, *TINY_BILSTM)
    small = without_option(small, "--limit") if "--limit" in more else small
    return ["distill", "mkd-lstm", *POCKET, "--teacher", teacher, "--out", out, *small, *more]


def hsk(inputs: TinyInputs, out: Path, *more: Any) -> list[Any]:
    """Distill on selected parts of the hidden states, from the tiny teacher."""
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
    return ["refine", *POCKET, "--encoder", encoder, "--out", out, *ONE_STEP, *more]


def predict(model: Path, out: Path, source: Path | None = None) -> list[Any]:
    """Predict the rows of a file, by default one row of RTE that this writes beside `out`."""
    if source is None:
        source = out.with_name("rows.jsonl")
        source.write_text('{"sentence1": "A man sleeps.", "sentence2": "A man rests."}\n')
    return ["predict", "--model", model, "--task", "rte", "--in", source, "--out", out.with_suffix(".jsonl")]


def generate(model: Path | str, text: Path, out: Path, *more: Any) -> list[Any]:
    return ["augment", "questions", "generate", "--model", model, "--text", text, "--out", out, *more]


# Called with the tiny inputs, the path of a damaged copy of one of them, and the output.
Command = Callable[["TinyInputs", Path, Path], list[Any]]

# These read the tiny inputs themselves, and no damaged copy.
COMMANDS: dict[str, Command] = {
    "refine": lambda inputs, path, out: refine(inputs.encoder, out),
    "distill": lambda inputs, path, out: distill(inputs.teacher, out),
    "finetune": lambda inputs, path, out: [
        "finetune", "--model", inputs.student, "--task", "rte", "--data", "pocket", "--out", out, "--limit", 8,
        "--eval-limit", 4, "--steps", 1,
    ],
    "evaluate": lambda inputs, path, out: evaluate(inputs.student, out),
    "predict": lambda inputs, path, out: predict(inputs.student, out),
    "mask": lambda inputs, path, out: ["augment", "mask", *POCKET, "--limit", 8, "--out", out],
    "replace": lambda inputs, path, out: ["augment", "replace", *POCKET, "--limit", 8, "--tagger", "none", "--out", out],
    "qgen": lambda inputs, path, out: generate(inputs.generator, inputs.texts, out),
    "qtrain": lambda inputs, path, out: [
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--model", "scratch", "--out", out,
        "--limit", 16, "--steps", 1, "--batch", 8, "--max-input", 64, "--max-output", 12, *TINY_T5,
    ],
    "compare": lambda inputs, path, out: [
        "compare", inputs.grid / "grid.toml", "--data", "pocket", "--teacher", inputs.teacher, "--out", out, "--dry-run",
    ],
    "store": lambda inputs, path, out: [
        "store", "plan", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", inputs.teacher, *TINY_HSK,
    ],
    "bench": lambda inputs, path, out: ["bench", "inference", "--model", inputs.student, "--rounds", 1, "--batch", 2, "--seq-len", 8],
    "suggest": lambda inputs, path, out: ["suggest", "--teacher", inputs.encoder, "--seq-len", 8, "--batch", 2, "--rounds", 1, "--target-speedup", 2],
    "check": lambda inputs, path, out: ["data", "check", *POCKET],
    "init": lambda inputs, path, out: ["init", inputs.rows / "train.jsonl", "--out", out],
    "report": lambda inputs, path, out: ["report", "html", inputs.teacher, "--out", out.with_suffix(".html")],
}  # fmt: skip
