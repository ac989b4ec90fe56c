"""The tiny inputs that the fault tests damage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wrong_inputs.tiny_inputs import TinyInputs


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyInputs]:
    inputs = TinyInputs(tmp_path_factory.mktemp("inputs"))
    with inputs.running:
        yield inputs
