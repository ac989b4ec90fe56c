"""Every flipped bit in the output of mtkd is detected: 10,000 flips, with `MTKD_FAULTS=1`.

The ordinary suite flips a few, in tests/mtkd/jobs/test_verify.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bit_flips import undetected_flips
from wrong_inputs.tiny_inputs import TinyInputs

ITEMS = ("teacher", "student", "knowledge", "corpus", "store", "export", "generator", "compared")
FLIPS = 10_000


@pytest.mark.skipif(not os.environ.get("MTKD_FAULTS"), reason="takes minutes: set MTKD_FAULTS")
@pytest.mark.parametrize("item", ITEMS)
def test_every_flipped_bit_is_detected(item: str, tmp_path: Path) -> None:
    directory = getattr(TinyInputs(tmp_path), item)
    undetected = list(undetected_flips(directory, FLIPS // len(ITEMS), seed=0))
    assert not undetected, "\n".join(undetected)
