"""Names of number formats in arguments and settings; nothing here needs torch."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16"]  # of a model that runs
StoreDtype = Literal["fp32", "fp16", "bf16", "int8"]  # of the vectors in a knowledge store
