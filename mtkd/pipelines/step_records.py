"""pipeline.json, in which a pipeline records the steps that have run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from tasks.common.errors import UserError
from tasks.common.records import Record, read_record

PIPELINE_RECORD = "pipeline.json"  # in the output directory


class StepRecord(TypedDict):
    """What is recorded of a step.

    Attributes:
        words: the command line after `mtkd`.
        out: the file or directory that it writes.
        inputs: the files that it reads -> their digests.
        after: the steps whose outputs it reads -> when these were finished.
        finished: when it was finished; None if it was interrupted.
        seconds: how long it took.
        replaces: when the output that it replaces was written.
        pipeline: the pipeline file that has the step, relative to the output directory.
    """

    words: list[str]
    out: str
    inputs: dict[str, str]
    after: dict[str, str | None]
    finished: str | None
    seconds: float | None
    replaces: NotRequired[int | None]
    pipeline: NotRequired[str]


@dataclass(frozen=True)
class PipelineRecord(Record):
    """The steps that have run, and the digests of the files that they read."""

    steps: dict[str, StepRecord] = field(default_factory=dict)
    files: dict[str, tuple[int, int, str]] = field(default_factory=dict)


def read_pipeline_record(file: Path, overwrite: bool) -> PipelineRecord:
    """Read a pipeline.json; a missing one is empty.

    Args:
        overwrite: all steps run again, so a damaged record does not matter.

    Raises:
        UserError: it is damaged.
    """
    if not file.is_file():
        return PipelineRecord()
    try:
        return read_record(file, PipelineRecord)
    except UserError as error:
        if overwrite:
            return PipelineRecord()
        hint = "run all steps again with `overwrite=True`"
        raise UserError(error.problem, expected=error.expected, hint=hint) from error
