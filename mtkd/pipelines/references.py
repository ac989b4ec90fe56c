"""References to the outputs of other steps in the options of a pipeline: `@NAME` and `@NAME/FILE`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.pipelines.step import TRAINS, Step
from tasks.common.errors import UserError, shorten, unknown

_REFERENCE = re.compile(r"(?:^|(?<=[=,]))@([^,=]*)")  # @NAME, TASK=@NAME and @NAME,@NAME
_MODELS = (*TRAINS, "pull")
_CORPORA = (
    *("augment mask", "augment replace", "augment contextual", "augment run"),
    *("augment questions generate", "augment questions filter", "pull"),
)
_CHECKPOINT = "export --format transformers"
_WRITE_FILES = ("predict", "report html", "report plot")  # their `out` is a file, not a directory
_FILES_IN_RUNS = ("model", "stages", "predictions", "run.json", "log.jsonl", "tensorboard", "checkpoints")
# Option -> the commands whose outputs it can read; "COMMAND OPTION" takes precedence over "OPTION".
_READS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("teacher", "encoder", "init"), (*_MODELS, _CHECKPOINT)),
    **dict.fromkeys(("model", "against"), (*_MODELS, "export", _CHECKPOINT)),
    **{"corpus": _CORPORA, "store": ("store build",)},
    **dict.fromkeys(("finetune model", "export model"), _MODELS),
    "augment questions generate model": ("augment questions train", "pull"),
    "augment questions train model": ("augment questions train", "pull"),
    "report html runs": (*_MODELS, "compare"),
    "report knowledge runs": (*_MODELS, "compare"),
    "report plot comparisons": ("compare",),
    "store info directory": ("store build",),
    **dict.fromkeys(("in", "unlabelled"), ("predict",)),
    "data": (),
}


def substitute(value: Any, output: Callable[[str], str]) -> Any:
    """The value of an option with each reference replaced; `output`: reference without @ -> path."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda reference: output(reference[1]), value)
    if isinstance(value, dict):
        return {key: substitute(item, output) for key, item in value.items()}
    return [substitute(item, output) for item in value] if isinstance(value, list) else value


def find_steps(reference: str, steps: Mapping[str, Step]) -> tuple[list[str], str]:
    """The names of the steps to which `NAME` or `NAME/FILE` refers, and the path that it stands for.

    These are several if `NAME` is a step of the file that is one command per task.

    Raises:
        UserError: there is no such step, or the path leads out of its output.
    """
    parts = reference.split("/")
    if ".." in parts:
        raise UserError(f"@{reference} leads out of the output of a step", expected="@NAME or @NAME/FILE")
    for count in range(len(parts), 0, -1):
        head, rest = "/".join(parts[:count]), parts[count:]
        if head in steps:
            return [head], str(Path(steps[head].out, *rest))
        if several := [name for name in steps if name.startswith(f"{head}/")]:
            if rest:  # it names neither one of these steps nor a file in the output of one
                raise unknown("step", reference, several)
            return several, str(Path(steps[several[0]].out).parent)
    raise unknown("step", parts[0], steps, hint="@NAME stands for the output of the step NAME")


def check_references(step: Step, steps: Mapping[str, Step]) -> None:
    """Check that the steps that the options of a step refer to write what these options read.

    Raises:
        UserError: an option names an output that it cannot read, such as a corpus in place of a model, or a
            file that a run cannot have. Files in other outputs are not checked.
    """
    written = {name: _written_by(other) for name, other in steps.items()}
    for key, value in step.raw.items():
        readable = _READS.get(f"{step.command} {key}", _READS.get(key))
        for name, inside in _referenced(value, steps):
            if inside:
                _check_inside(key, steps[name], inside)
            elif readable is not None and written[name] not in readable:
                fitting = [other for other in steps if written[other] in readable and other != step.name]
                commands = ", ".join(f"`mtkd {command}`" for command in readable)
                raise UserError(
                    f"{key} = '@{name}' is written by `mtkd {written[name]}`, which this option cannot read",
                    expected=f"the output of {commands}" if readable else "no output of a step",
                    hint=f"steps that fit: {shorten(fitting)}" if fitting else None,
                )


def _check_inside(key: str, step: Step, inside: Sequence[str]) -> None:
    """Raise UserError if the output of a step cannot have the file that `@NAME/FILE` names."""
    shown = f"{key} = '@{'/'.join((step.name, *inside))}'"
    if "out" not in step.options or step.command in _WRITE_FILES:
        raise UserError(f"{shown}: the step {step.name!r} writes one file", expected=f"'@{step.name}'")
    if step.command in TRAINS and inside[0] not in _FILES_IN_RUNS:
        raise unknown(f"file in a run ({shown}):", inside[0], _FILES_IN_RUNS)


def _written_by(step: Step) -> str:
    """The command of a step; an export for transformers has a name of its own."""
    is_checkpoint = step.command == "export" and step.options.get("format") == "transformers"
    return _CHECKPOINT if is_checkpoint else step.command


def _referenced(value: Any, steps: Mapping[str, Step]) -> list[tuple[str, tuple[str, ...]]]:
    """The steps that a value refers to, each with the parts of the path inside its output."""
    found: list[tuple[str, tuple[str, ...]]] = []

    def collect(reference: str) -> str:
        names, path = find_steps(reference, steps)
        inside = Path(path).relative_to(steps[names[0]].out).parts if len(names) == 1 else ()
        found.extend((name, inside) for name in names)
        return path

    substitute(value, collect)
    return found
