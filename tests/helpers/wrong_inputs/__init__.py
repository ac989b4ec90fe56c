"""Wrong inputs for every command: what each case damages, and how the command is run."""

from __future__ import annotations

from collections.abc import Iterator

from wrong_inputs.endpoint import endpoint_cases
from wrong_inputs.model_files import model_cases
from wrong_inputs.options import option_cases, setting_cases
from wrong_inputs.outputs_over_inputs import overlap_cases
from wrong_inputs.read_back import read_back_cases
from wrong_inputs.row_files import span_cases, table_cases
from wrong_inputs.special_files import special_file_cases
from wrong_inputs.texts_and_outputs import out_cases, text_cases
from wrong_inputs.tiny_inputs import Case
from wrong_inputs.toml_files import task_cases, toml_cases


def cases() -> Iterator[Case]:
    """Yield all cases except those of values in JSON files, which depend on the files of the tiny inputs."""
    yield from option_cases()
    yield from setting_cases()
    yield from task_cases()
    yield from toml_cases()
    yield from table_cases()
    yield from span_cases()
    yield from model_cases()
    yield from special_file_cases()
    yield from read_back_cases()
    yield from text_cases()
    yield from out_cases()
    yield from overlap_cases()
    yield from endpoint_cases()
