# ruff: noqa: E501
"""Wrong values and content of the JSON files that commands read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.common.records import CHECK
from wrong_inputs.commands import COMMANDS, Command, distill, evaluate, generate, hsk, predict, refine
from wrong_inputs.tiny_inputs import POCKET, Case, TinyInputs, replace, teacher_command

BIG, DEEP = 10**30, 100_000


DIGITS = "9" * 5000


SURROGATE = "\\ud800"  # as JSON writes it


# Values that replace each value of a JSON file.
WRONG: dict[str, Any] = {
    "null": None, "list": [], "table": {}, "text": "x", "empty": "", "-1": -1, "0": 0, "1e300": 1e300,
    "big": BIG, "nan": float("nan"), "true": True, "dots": "..", "dotted": "a.b", "long": "x" * 5000,
    "nested": [[{}]],
}  # fmt: skip


MISSING = object()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a JSON file; of a list, only those of its first two entries."""
    yield path
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, part in inner:
        yield from leaves(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Return the value of a JSON file with a part replaced, or removed (`MISSING`)."""
    if not path:
        return None if wrong is MISSING else wrong
    value = copy.deepcopy(value)
    part = value
    for key in path[:-1]:
        part = part[key]
    if wrong is MISSING:
        del part[path[-1]]
    else:
        part[path[-1]] = wrong
    return value


RAW = {  # contents that are not valid JSON, or barely
    "nothing": "", "not JSON": "{", "latin-1": b'{"a": "\xe9"}', "NULs": b"\x00" * 64, "deep": "[" * DEEP,
    "digits": f'{{"format": {DIGITS}}}', "surrogate": f'{{"format": "{SURROGATE}"}}', "bool": "true",
}  # fmt: skip


def unfinished(inputs: TinyInputs, path: Path) -> list[Any]:
    """Resume the run that stopped after its first checkpoint."""
    settings = ("--set=train.checkpoint_steps=2", "--set=train.batch_size=4", "--set=max_length=16")
    return [
        "refine", *POCKET, "--encoder", inputs.encoder, "--out", path, "--limit", 8, "--eval-limit", 4, "--steps", 4, *settings,
    ]  # fmt: skip


# The input, the file in it, and the commands that read it, by a name of the case.
JSON_FILES: list[tuple[str, str, dict[str, Command]]] = [
    ("teacher", "model/model.json", {
        "evaluate": lambda inputs, path, out: evaluate(path, out),
        "distill": lambda inputs, path, out: distill(path, out),
    }),
    ("teacher", "run.json", {
        "report": lambda inputs, path, out: ["report", "html", path, "--out", out.with_suffix(".html")],
        "out": lambda inputs, path, out: teacher_command(inputs, path),
    }),
    ("teacher", "model/tokenizer_config.json", {"evaluate": lambda inputs, path, out: evaluate(path, out)}),
    ("student", "model/model.json", {"evaluate": lambda inputs, path, out: evaluate(path, out)}),
    ("student", "run.json", {
        "report": lambda inputs, path, out: ["report", "html", inputs.teacher, path, "--out", out.with_suffix(".html")],
    }),
    ("knowledge", "run.json", {"report": lambda inputs, path, out: ["report", "knowledge", path, "--out", out]}),
    ("encoder", "config.json", {"refine": lambda inputs, path, out: refine(path, out)}),
    ("encoder", "tokenizer_config.json", {"refine": lambda inputs, path, out: refine(path, out)}),
    ("checkpoint", "config.json", {
        "distill": lambda inputs, path, out: distill(path, out),
    }),
    ("unfinished", "run.json", {"out": lambda inputs, path, out: unfinished(inputs, path)}),
    ("unfinished", "checkpoints/step-000000002/position.json", {
        "out": lambda inputs, path, out: unfinished(inputs, path),
    }),
    ("compared", "compare.json", {
        "plot": lambda inputs, path, out: ["report", "plot", path, "--out", out.with_suffix(".png")],
        "report": lambda inputs, path, out: ["report", "html", path, "--out", out.with_suffix(".html")],
    }),
    ("corpus", "manifest.json", {
        "distill": lambda inputs, path, out: distill(inputs.teacher, out, "--corpus", path, "--limit", 32),
        "out": lambda inputs, path, out: [
            "augment", "mask", *POCKET, "--limit", 32, "--copies", 2, "--out", path
        ],
    }),
    ("store", "manifest.json", {
        "distill": lambda inputs, path, out: hsk(inputs, out, "--store", path),
        "info": lambda inputs, path, out: ["store", "info", path],
        "verify": lambda inputs, path, out: ["verify", path],
        "repair": lambda inputs, path, out: ["store", "build", "--repair", "--out", path],
    }),
    ("export", "export.json", {"predict": lambda inputs, path, out: predict(path, out)}),
    ("export", "model.json", {"predict": lambda inputs, path, out: predict(path, out)}),
    ("generator", "questions.json", {
        "generate": lambda inputs, path, out: generate(path, inputs.texts, out),
    }),
    ("generator", "config.json", {"generate": lambda inputs, path, out: generate(path, inputs.texts, out)}),
    ("generator", "tokenizer_config.json", {
        "generate": lambda inputs, path, out: generate(path, inputs.texts, out),
    }),
    ("pipeline", "out/pipeline.json", {
        "run": lambda inputs, path, out: ["run", path / "job.toml", "--dry-run"],
    }),
]  # fmt: skip


def valid_commands() -> Iterator[Case]:
    """Yield every command that the cases run, with valid input."""
    for name, command in COMMANDS.items():
        yield Case(
            name, lambda inputs, directory, command=command: command(inputs, directory, directory / "out")
        )
    for item, file, commands in JSON_FILES:
        for name, command in commands.items():
            yield Case(
                f"{item}/{file} ({name})",
                lambda inputs, directory, item=item, command=command: command(
                    inputs, inputs.copy(item, directory), directory / "out"
                ),
            )


def json_cases() -> Iterator[Case]:
    """Yield cases in which a JSON file that commands read has other content, mostly not valid JSON."""

    def damage(inputs: TinyInputs, directory: Path, item: str, file: str, content: str | bytes) -> Path:
        path = inputs.copy(item, directory)
        replace(path / file, content)
        return path

    for item, file, commands in JSON_FILES:
        for reader, command in commands.items():
            for name, raw in RAW.items():
                yield Case(
                    f"{item}/{file} ({reader}) {name}",
                    lambda inputs, directory, item=item, file=file, command=command, raw=raw: command(
                        inputs, damage(inputs, directory, item, file, raw), directory / "out"
                    ),
                    # A surrogate is JSON, and some records may have further keys; an unfinished run may start over.
                    must_fail=name != "surrogate" and item != "unfinished",
                )


def value_cases(inputs: TinyInputs, only: str = "") -> Iterator[Case]:
    """Yield cases with every value of the JSON files that commands read replaced by each wrong one.

    Args:
        only: a part of "INPUT/FILE"; the other files are left out.
    """
    for item, file, commands in JSON_FILES:
        if only not in f"{item}/{file}":
            continue
        value = json.loads((getattr(inputs, item) / file).read_text())
        value.pop(CHECK, None)
        for path in leaves(value):
            for kind, wrong in (*WRONG.items(), ("missing", MISSING)):
                for reader, command in commands.items():
                    name = f"{item}/{file} ({reader}) {'.'.join(map(str, path))} = {kind}"
                    text = json.dumps(changed(value, path, wrong))

                    def make(
                        inputs: TinyInputs, directory: Path, item=item, file=file, command=command, text=text
                    ) -> list[Any]:
                        copied = inputs.copy(item, directory)
                        replace(copied / file, text)
                        return command(inputs, copied, directory / "out")

                    yield Case(name, make, must_fail=False)
