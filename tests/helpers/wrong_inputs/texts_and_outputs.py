# ruff: noqa: E501
"""Unusable plain text, and impossible output paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.commands import COMMANDS, generate
from wrong_inputs.tiny_inputs import TINY_MLM, Case, TinyInputs, write_file


def text_cases() -> Iterator[Case]:
    """Yield cases with unusable plain text."""
    for name, content in {
        "empty": "", "blank": "\n \n\t\n", "control": "\x01\x02\x03\n" * 100, "zero-width": "\u200b\u200c\n" * 100,
        "NULs": b"\x00" * 1000, "one long line": "a" * 2_000_000, "latin-1": b"caf\xe9\n" * 10, "BOM": "\ufeff" * 50,
    }.items():  # fmt: skip

        def mlm(inputs: TinyInputs, directory: Path, content=content) -> list[Any]:
            return [
                "distill", "minilm-6", "--text", write_file(directory, "t.txt", content), "--teacher", inputs.encoder, *TINY_MLM, "--out", directory / "out",
                "--steps", 1, "--set=student.max_length=8", "--batch", 2, "--eval-limit", 2,
            ]  # fmt: skip

        yield Case(f"distill text only {name}", mlm, must_fail=False)
        yield Case(
            f"qgen text only {name}",
            lambda inputs, directory, content=content: generate(
                inputs.generator, write_file(directory, "t.txt", content), directory / "out"
            ),
            must_fail=False,
        )


OUTS = (
    "x" * 300, "d/" * 2500, "/dev/null/x", "/etc/passwd", "/etc/passwd/x", ".", "..", "/", "\udcff", "a\nb",
    "file/x", "file",
)  # fmt: skip


def out_cases() -> Iterator[Case]:
    """Yield cases with impossible output paths."""
    for name in (
        "refine",
        "distill",
        "finetune",
        "mask",
        "qgen",
        "qtrain",
        "compare",
        "init",
        "evaluate",
        "predict",
        "report",
    ):
        for out in OUTS:

            def make(inputs: TinyInputs, directory: Path, name=name, out=out) -> list[Any]:
                write_file(directory, "work/file", "x")
                words = COMMANDS[name](inputs, directory, directory / "out")
                if name == "evaluate":
                    return [*words, "--json", out]
                index = words.index("--out") + 1
                return [*words[:index], out, *words[index + 1 :]]

            yield Case(f"out {name} {out[:20]!r}", make, must_fail=False)
