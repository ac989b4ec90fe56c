# ruff: noqa: E501
"""Named pipes, directories, devices and circular links in place of the files that commands read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.commands import distill, evaluate, generate, hsk, predict, refine
from wrong_inputs.tiny_inputs import Case, TinyInputs

KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
}
# The input, the file in it, and the command that reads it, given the copy of the input.
READERS: dict[str, tuple[str, str, Callable[[TinyInputs, Path, Path], list[Any]]]] = {
    "task file": ("rows", "topics.toml", lambda i, d, at: ["data", "check", "--tasks", d / "topics.toml"]),
    "rows": ("rows", "train.jsonl", lambda i, d, at: ["data", "check", "--tasks", d / "topics.toml"]),
    "unlabelled": ("rows", "more.jsonl", lambda i, d, at: ["data", "check", "--tasks", d / "topics.toml", "--unlabelled", f"topics={d / 'more.jsonl'}"]),
    "data of init": ("rows", "train.jsonl", lambda i, d, at: ["init", d / "train.jsonl", "--out", at / "out"]),
    "rows to predict": ("rows", "p.jsonl", lambda i, d, at: ["predict", "--model", i.teacher, "--task", "sst2", "--in", d / "p.jsonl", "--out", at / "o.jsonl"]),
    "grid": ("grid", "grid.toml", lambda i, d, at: ["compare", d / "grid.toml", "--data", "pocket", "--teacher", i.teacher, "--out", at / "out", "--dry-run"]),
    "pipeline": ("pipeline", "job.toml", lambda i, d, at: ["run", d / "job.toml", "--dry-run"]),
    "recipe": ("grid", "r.toml", lambda i, d, at: ["recipes", "show", d / "r.toml"]),
    "run.json": ("teacher", "run.json", lambda i, d, at: ["report", "html", d, "--out", at / "r.html"]),
    "heads": ("teacher", "model/heads.safetensors", lambda i, d, at: evaluate(d, at)),
    "digests": ("teacher", "model/digests.json", lambda i, d, at: evaluate(d, at)),
    "verified digests": ("teacher", "digests.json", lambda i, d, at: ["verify", d]),
    "encoder": ("encoder", "config.json", lambda i, d, at: refine(d, at / "out")),
    "corpus": ("corpus", "manifest.json", lambda i, d, at: distill(i.teacher, at / "out", "--corpus", d, "--limit", 32)),
    "store": ("store", "shards/rte-00000.safetensors", lambda i, d, at: hsk(i, at / "out", "--store", d)),
    "export": ("export", "weights.bin", lambda i, d, at: predict(d, at / "out")),
    "text": ("texts", "text.txt", lambda i, d, at: generate("rules", d / "text.txt", at / "out")),
    "prompt template": ("texts", "p.txt", lambda i, d, at: generate("http://127.0.0.1:1/v1", d / "text.txt", at / "out", "--endpoint-model", "m", "--prompt-template", d / "p.txt")),
}  # fmt: skip


def special_file_cases() -> Iterator[Case]:
    """Yield a case for every reader and every kind of special file."""
    for name, (item, file, words) in READERS.items():
        for kind, make in KINDS.items():

            def case(inputs: TinyInputs, at: Path, i=item, f=file, w=words, m=make) -> list[Any]:
                directory = inputs.copy(i, at)
                path = directory / f
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                m(path)
                return w(inputs, directory, at)

            yield Case(f"special file {name}: {kind}", case)
