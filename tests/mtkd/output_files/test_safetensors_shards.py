"""Safetensors shards whose header does not match their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mtkd.output_files.safetensors_shards import SafetensorsFormat, StoredTensor, read_header

CONTENT = {"logits": torch.ones(3, 2), "tokens": torch.ones(3, dtype=torch.int32)}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    SafetensorsFormat().write(tmp_path / "shard", CONTENT, "key")
    return tmp_path / "shard"


def with_header(path: Path, header: Any) -> None:
    size = int.from_bytes(path.read_bytes()[:8], "little")
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + path.read_bytes()[8 + size :])


def header_of(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def test_a_written_shard_can_be_read(shard: Path) -> None:
    header = read_header(shard)
    assert header.metadata == {"key": "key"} and header.tensors.keys() == CONTENT.keys()
    start = shard.stat().st_size - 3 * 4
    assert StoredTensor("I32", (3,), start) in header.tensors.values()
    footer = SafetensorsFormat().read_footer(shard)
    assert footer is not None and footer.key == "key"


@pytest.mark.parametrize(
    "change",
    [
        lambda header: [],
        lambda header: b"[" * 100_000,
        lambda header: b"\xff",
        lambda header: {},
        lambda header: header | {"__metadata__": 5},
        lambda header: header | {"__metadata__": {"key": 5}},
        lambda header: header | {"tokens": []},
        lambda header: header | {"more": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        *(
            lambda header, key=key, value=value: header | {"tokens": header["tokens"] | {key: value}}
            for key, value in (
                *(("data_offsets", offsets) for offsets in ([-1, 5], [100, 0], [0, 2**63], ["0", "1"], [0])),
                *(("shape", shape) for shape in ([4], [-3], ["3"], [], [2**40, 2**40])),
                *(("dtype", dtype) for dtype in ("F64", "EVIL", None)),
            )
        ),
    ],
)
def test_a_wrong_header_is_rejected(shard: Path, change: Any) -> None:
    with_header(shard, change(header_of(shard)))
    with pytest.raises(ValueError, match="is not a safetensors file"):
        read_header(shard)
    assert SafetensorsFormat().read_footer(shard) is None


def test_a_truncated_shard_and_a_directory_are_rejected(shard: Path, tmp_path: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is not a safetensors file"):
        read_header(shard)
    with pytest.raises(ValueError, match="it is a directory"):
        read_header(tmp_path)
