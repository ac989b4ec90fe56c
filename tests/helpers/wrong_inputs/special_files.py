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
# The input, the file in it, and the command that reads it. The command is called with the tiny inputs, a copy of the input,
# and the directory of the case.
READERS: dict[str, tuple[str, str, Callable[[TinyInputs, Path, Path], list[Any]]]] = {
    "task file": ("rows", "topics.toml", lambda inputs, copied, directory: ["data", "check", "--tasks", copied / "topics.toml"]),
    "rows": ("rows", "train.jsonl", lambda inputs, copied, directory: ["data", "check", "--tasks", copied / "topics.toml"]),
    "unlabelled": ("rows", "more.jsonl", lambda inputs, copied, directory: ["data", "check", "--tasks", copied / "topics.toml", "--unlabelled", f"topics={copied / 'more.jsonl'}"]),
    "data of init": ("rows", "train.jsonl", lambda inputs, copied, directory: ["init", copied / "train.jsonl", "--out", directory / "out"]),
    "rows to predict": ("rows", "p.jsonl", lambda inputs, copied, directory: ["predict", "--model", inputs.teacher, "--task", "sst2", "--in", copied / "p.jsonl", "--out", directory / "o.jsonl"]),
    "grid": ("grid", "grid.toml", lambda inputs, copied, directory: ["compare", copied / "grid.toml", "--data", "pocket", "--teacher", inputs.teacher, "--out", directory / "out", "--dry-run"]),
    "pipeline": ("pipeline", "job.toml", lambda inputs, copied, directory: ["run", copied / "job.toml", "--dry-run"]),
    "recipe": ("grid", "r.toml", lambda inputs, copied, directory: ["recipes", "show", copied / "r.toml"]),
    "run.json": ("teacher", "run.json", lambda inputs, copied, directory: ["report", "html", copied, "--out", directory / "r.html"]),
    "heads": ("teacher", "model/heads.safetensors", lambda inputs, copied, directory: evaluate(copied, directory)),
    "digests": ("teacher", "model/digests.json", lambda inputs, copied, directory: evaluate(copied, directory)),
    "verified digests": ("teacher", "digests.json", lambda inputs, copied, directory: ["verify", copied]),
    "encoder": ("encoder", "config.json", lambda inputs, copied, directory: refine(copied, directory / "out")),
    "corpus": ("corpus", "manifest.json", lambda inputs, copied, directory: distill(inputs.teacher, directory / "out", "--corpus", copied, "--limit", 32)),
    "store": ("store", "shards/rte-00000.safetensors", lambda inputs, copied, directory: hsk(inputs, directory / "out", "--store", copied)),
    "export": ("export", "weights.bin", lambda inputs, copied, directory: predict(copied, directory / "out")),
    "text": ("texts", "text.txt", lambda inputs, copied, directory: generate("rules", copied / "text.txt", directory / "out")),
    "prompt template": ("texts", "p.txt", lambda inputs, copied, directory: generate("http://127.0.0.1:1/v1", copied / "text.txt", directory / "out", "--endpoint-model", "m", "--prompt-template", copied / "p.txt")),
}  # fmt: skip


def special_file_cases() -> Iterator[Case]:
    """Yield a case for every reader and every kind of special file."""
    for name, (item, file, command) in READERS.items():
        for kind, make_file in KINDS.items():

            def case(
                inputs: TinyInputs,
                directory: Path,
                item=item,
                file=file,
                command=command,
                make_file=make_file,
            ) -> list[Any]:
                copied = inputs.copy(item, directory)
                path = copied / file
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                make_file(path)
                return command(inputs, copied, directory)

            yield Case(f"special file {name}: {kind}", case)
