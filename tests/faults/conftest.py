"""The tiny inputs that the fault tests damage."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
from wrong_inputs.tiny_inputs import TinyInputs


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyInputs]:
    inputs = TinyInputs(tmp_path_factory.mktemp("inputs"))
    with inputs.running:
        yield inputs


@pytest.fixture(autouse=True)
def no_time_limit() -> None:
    """The tests of `make faults` take longer than other tests may; each command has its own time limit."""
    if os.environ.get("MTKD_FAULTS"):
        faulthandler.cancel_dump_traceback_later()
