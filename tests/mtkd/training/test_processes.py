"""Parts of the training loop for several processes and for GPUs, tested without them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtkd.training.batches import DrawnRows, MicroBatches
from mtkd.training.processes import make_accelerator
from tasks.common.errors import UserError


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (["ACCELERATE_USE_DEEPSPEED"], "accelerate was started with DEEPSPEED.*data parallelism"),
        (["ACCELERATE_USE_MEGATRON_LM"], "accelerate was started with MEGATRON_LM.*--use_fsdp"),
        (["ACCELERATE_USE_FSDP"], "only one process.*--num_processes 2"),
        (["ACCELERATE_USE_FSDP", "WORLD_SIZE", "FSDP_OFFLOAD_PARAMS"], "FSDP_OFFLOAD_PARAMS=true.*leave"),
    ],
)
def test_other_ways_to_shard_models_are_rejected(
    variables: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables:
        monkeypatch.setenv(variable, "2" if variable == "WORLD_SIZE" else "true")
    with pytest.raises(UserError, match=f"(?s){message}"):
        make_accelerator("cpu")


@pytest.mark.parametrize("pin", [True, False])
def test_the_thread_that_prepares_batches_pins_them(pin: bool) -> None:
    def collate(rows: Any, indices: np.ndarray) -> Any:
        return SimpleNamespace(indices=indices, pin_memory=lambda: ("pinned", indices.tolist()))

    source: Any = SimpleNamespace(tasks={"t": None}, collate=collate)
    objective: Any = SimpleNamespace(terms={}, num_items=lambda task, batch: [])
    drawn = DrawnRows(SimpleNamespace(task="t", groups=None), np.arange(5))  # type: ignore[arg-type]
    batches: Any = MicroBatches(source, objective, 2, pin=pin).step(drawn).batches
    if pin:
        assert batches == (("pinned", [0, 3]), ("pinned", [1, 4]), ("pinned", [2]))
    else:
        assert [batch.indices.tolist() for batch in batches] == [[0, 3], [1, 4], [2]]
