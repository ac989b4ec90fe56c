"""Cached logits of a teacher: which files are damaged, and how they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mtkd.output_files.sharded_output import PlannedShard
from mtkd.teachers.logits_cache import MappedLogits, _holds_logits
from tasks.common.errors import UserError
from tasks.glue import TASKS

SHARD = PlannedShard("shard", "rte", range(4))


@pytest.mark.parametrize(
    ("content", "fits"),
    [
        ({"logits": torch.ones(4, 2)}, True),
        ({"logits": torch.ones(3, 2)}, False),
        ({"logits": torch.ones(0, 2)}, False),
        ({"logits": torch.ones(4, 3)}, False),
        ({"logits": torch.ones(4)}, False),
        ({"logits": torch.ones(4, 2).half()}, False),
        ({"other": torch.ones(4, 2)}, False),
    ],
)
def test_a_shard_must_hold_the_logits_of_its_rows(
    content: dict[str, torch.Tensor], fits: bool, tmp_path: Path
) -> None:
    save_file(content, tmp_path / "shard")
    assert _holds_logits(tmp_path / "shard", TASKS["rte"], SHARD) is fits
    spans = PlannedShard("shard", "squad", range(4))
    save_file({"logits": torch.ones(4, 2, 9)}, tmp_path / "shard")
    assert _holds_logits(tmp_path / "shard", TASKS["squad"], spans)


def test_values_that_are_not_finite_name_the_file(tmp_path: Path) -> None:
    logits = torch.arange(8.0).reshape(4, 2)
    save_file({"logits": logits}, tmp_path / "one")
    save_file({"logits": logits * torch.tensor([[1.0], [1.0], [torch.nan], [1.0]])}, tmp_path / "two")
    found = MappedLogits([tmp_path / "one", tmp_path / "two"])
    assert found[np.array([0, 5])].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(UserError, match="two are damaged: they are not all finite"):
        _ = found[np.array([0, 6])]
