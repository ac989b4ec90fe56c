# ruff: noqa: E501
"""Wrong task files, grids and pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.json_files import BIG, DIGITS, RAW
from wrong_inputs.tiny_inputs import ONE_STEP, TINY_BILSTM, TINY_TRAINING, Case, TinyInputs, write_file

TASK_VALUES = (
    "''", "'keys'", "'train'", "'..'", "'a.b'", "'a/b'", "[]", "{}", "1", "-1", "true", "nan", "inf", str(BIG), DIGITS,
    "[0, inf]", "[0, 1e308]", "[1, 0]", f"[0, {BIG}]", "[1e16, 1.0000000000000002e16]", "'text'", "'" + "x" * 5000 + "'",
    "['a', 'a']", "[1, 2]", "[" * 3000, "[" * 3000 + "]" * 3000, "{a = 1}", "'\\u001b'", "\"\\u001b[31m\"", "0x" + "f" * 5000,
    "['']", "'.'", "{train = '.'}", "{train = ''}", "{train = 'train.jsonl.gz'}", "{train = 1}", "1979-05-27",
)  # fmt: skip


TASK_KEYS = (
    "name", "kind", "columns", "labels", "label", "range", "group", "positive", "metrics", "groups", "head", "map",
    "copies", "unanswerable", "languages", "soft_labels", "soft_labels_kind", "extends", "files", "other",
)  # fmt: skip


def task_cases() -> Iterator[Case]:
    """Yield cases with wrong values in task files, and task files, grids, pipelines and recipes that are not TOML."""
    base = {"name": "'topics'", "kind": "'classify'", "columns": "['text']", "labels": "['a', 'b']"}
    for key in TASK_KEYS:
        for value in TASK_VALUES:
            for command in ("check", "refine"):

                def make(
                    inputs: TinyInputs, directory: Path, key=key, value=value, command=command
                ) -> list[Any]:
                    rows = inputs.copy("rows", directory)
                    kind = {"kind": "'regress'"} if key == "range" else {}
                    tables = base | kind | {key: value}
                    if kind:
                        tables.pop("labels")
                    tables["files"] = (
                        value
                        if key == "files"
                        else "{train = 'train.jsonl', validation = 'validation.jsonl'}"
                    )
                    text = "".join(f"{name} = {value}\n" for name, value in tables.items())
                    task = write_file(rows, "topics.toml", text)
                    if command == "check":
                        return ["data", "check", "--tasks", task]
                    options = ["--encoder", inputs.encoder, "--out", directory / "out"]
                    return ["refine", "--tasks", task, *options, *ONE_STEP]

                yield Case(f"task file ({command}) {key} = {value[:30]}", make, must_fail=False)
    for name, raw in {**RAW, "BOM": b"\xef\xbb\xbfname = 'a'"}.items():
        yield Case(
            f"task file {name}",
            lambda inputs, directory, raw=raw: [
                "data",
                "check",
                "--tasks",
                write_file(directory, "t.toml", raw),
            ],
        )
        yield Case(f"grid {name}", lambda inputs, directory, raw=raw: grid_command(inputs, directory, raw))
        yield Case(
            f"pipeline {name}", lambda inputs, directory, raw=raw: pipeline_command(inputs, directory, raw)
        )
        yield Case(
            f"recipe {name}", lambda inputs, directory, raw=raw: recipe_command(inputs, directory, raw)
        )


GRID_KEYS = (
    "title", "source", "recipe", "tasks", "seeds", "set", "cells", "bench", "refine", "reference", "baselines",
    "cells.a", "cells.a.recipe", "cells.a.tasks", "cells.a.set", "cells.a.first", "cells.a.corpus",
    "cells.a.then", "cells.a.steps_of", "cells.a.limit", "cells.a.control", "bench.seq_len", "bench.batches", "refine.seed",
    "cells.a.set.train", "set.x",
)  # fmt: skip


RECIPE_KEYS = (
    "command", "extends", "name", "summary", "student", "student.kind", "student.max_length", "terms",
    "terms.logits", "terms.logits.weight", "terms.new", "stages", "stages.a", "stages.a.train", "stages.a.terms",
    "train", "train.lr", "per_task", "per_task.rte", "slow_build", "x",
)  # fmt: skip


PIPE_KEYS = (
    "title", "out", "data", "tasks", "seed", "device", "precision", "limit", "eval-limit", "steps",
    "steps.teacher", "steps.teacher.command", "steps.teacher.out", "steps.teacher.epochs", "steps.teacher.set",
    "steps.teacher.encoder", "steps.teacher.tasks", "steps.teacher.lr", "steps.teacher.title", "steps.a.command",
    "steps.teacher.quiet", "steps.teacher.json", "steps.teacher.data",
)  # fmt: skip


def with_key(base: dict[str, str], key: str, value: str) -> str:
    """TOML with one key set; the keys inside it are left out."""
    tables = {name: text for name, text in base.items() if not name.startswith(f"{key}.")} | {key: value}
    return "".join(f"{name} = {text}\n" for name, text in tables.items())


def grid_command(inputs: TinyInputs, directory: Path, text: str | bytes) -> list[Any]:
    options = ["--data", "pocket", "--teacher", inputs.teacher, "--out", directory / "out", "--dry-run"]
    return ["compare", write_file(directory, "g.toml", text), *options]


def recipe_command(inputs: TinyInputs, directory: Path, text: str | bytes) -> list[Any]:
    options = [
        "--data",
        "pocket",
        "--tasks",
        "rte",
        "--teacher",
        inputs.teacher,
        "--out",
        directory / "out",
        "--lr",
        "0.1",
    ]
    return ["distill", write_file(directory, "r.toml", text), *options, *TINY_TRAINING, *TINY_BILSTM]


def pipeline_command(inputs: TinyInputs, directory: Path, text: str | bytes) -> list[Any]:
    return ["run", write_file(directory, "p.toml", text), "--dry-run"]


def toml_cases() -> Iterator[Case]:
    """Yield cases with one wrong value in a grid, a recipe or a pipeline."""
    grid = {"title": "'t'", "recipe": "'mkd-lstm'", "tasks": "['rte']", "cells.a.recipe": "'mkd-lstm'"}
    pipeline = {"data": "'pocket'", "tasks": "'rte'", "limit": "32", "steps.teacher.command": "'refine'"}

    def for_pipeline(inputs: TinyInputs) -> dict[str, str]:
        return pipeline | {"steps.teacher.encoder": f"'{inputs.encoder}'"}

    for what, keys, command, base in (
        ("grid", GRID_KEYS, grid_command, lambda inputs: grid),
        ("recipe", RECIPE_KEYS, recipe_command, lambda inputs: {"extends": "'mkd-lstm'"}),
        ("pipeline", PIPE_KEYS, pipeline_command, for_pipeline),
    ):
        for key, value in itertools.product(keys, TASK_VALUES):

            def make(
                inputs: TinyInputs, directory: Path, key=key, value=value, command=command, base=base
            ) -> list[Any]:
                return command(inputs, directory, with_key(base(inputs), key, value))

            yield Case(f"{what} {key} = {value[:30]}", make, must_fail=False)
