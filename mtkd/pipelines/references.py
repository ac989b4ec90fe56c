"""References of a pipeline's options to the outputs of other steps: `@NAME` and `@NAME/FILE`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
# Option -> the commands whose outputs it can read; an option of one command takes precedence.
_READS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("teacher", "encoder", "init"), (*_MODELS, _CHECKPOINT)),
    **dict.fromkeys(("model", "against"), (*_MODELS, "export", _CHECKPOINT)),
    **{"corpus": _CORPORA, "store": ("store build",)},
    **dict.fromkeys(("finetune model", "export model"), _MODELS),
    "augment questions generate model": ("augment questions train", "pull"),
    "augment questions train model": ("augment questions train", "pull"),
    "report html runs": (*_MODELS, "compare"),
}


def substitute(value: Any, output: Callable[[str], str]) -> Any:
    """A value of an option with the path of each reference in its place."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda reference: output(reference[1]), value)
    if isinstance(value, dict):
        return {key: substitute(item, output) for key, item in value.items()}
    return [substitute(item, output) for item in value] if isinstance(value, list) else value


def find_steps(reference: str, steps: Mapping[str, Step]) -> tuple[list[str], str]:
    """The steps that `NAME`, or `NAME/FILE` in its output, refers to, and the path.

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
            return several, str(Path(steps[several[0]].out).parent.joinpath(*rest))
    raise unknown("step", parts[0], steps, hint="@NAME stands for the output of the step NAME")


def check_references(step: Step, steps: Mapping[str, Step]) -> None:
    """Check that the steps that the options of a step refer to write what these options read.

    A file or directory in an output, `@NAME/FILE`, may be anything, such as a run in that of `compare`.

    Raises:
        UserError: an option that reads a model, corpus or store names the output of another command.
    """
    written = {name: _written_by(other) for name, other in steps.items()}
    for key, value in step.raw.items():
        readable = _READS.get(f"{step.command} {key}", _READS.get(key, ()))
        for name in _outputs_named(value, steps) if readable else ():
            if written[name] not in readable:
                fitting = [other for other in steps if written[other] in readable and other != step.name]
                raise UserError(
                    f"{key} = '@{name}' is written by `mtkd {written[name]}`, which this option cannot read",
                    expected=f"the output of {', '.join(f'`mtkd {command}`' for command in readable)}",
                    hint=f"steps that fit: {shorten(fitting)}" if fitting else None,
                )


def _written_by(step: Step) -> str:
    """The command of a step, with the format of an export for transformers."""
    is_checkpoint = step.command == "export" and step.options.get("format") == "transformers"
    return _CHECKPOINT if is_checkpoint else step.command


def _outputs_named(value: Any, steps: Mapping[str, Step]) -> list[str]:
    """The steps whose whole outputs a value names."""
    names: list[str] = []

    def collect(reference: str) -> str:
        found, path = find_steps(reference, steps)
        names.extend(name for name in found if reference == name or len(found) > 1)
        return path

    substitute(value, collect)
    return names
