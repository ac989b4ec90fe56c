"""Interrupt a job that writes shards, and damage a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtkd.output_files.sharded_output import PlannedShard, ShardedOutput


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, problem: BaseException) -> None:
    """Make writing fail after `after` shards."""
    written: list[str] = []

    def failing(self: ShardedOutput, shard: PlannedShard, content: Any) -> None:
        if len(written) == after:
            raise problem
        write_shard(self, shard, content)
        written.append(shard.file)

    write_shard = ShardedOutput.write_shard
    monkeypatch.setattr(ShardedOutput, "write_shard", failing)


def flip_a_bit(file: Path, position: int = -9) -> None:
    """Change one bit of a file, by default near its end, where safetensors files have values."""
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)
