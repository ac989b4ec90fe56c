"""Digests of files: which changes are detected, and what is not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.common.digests import DIGESTS, check_digests, damaged_files, write_digests
from tasks.common.errors import UserError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    for name in ("weights.safetensors", "part/more.json", "README.md", "empty.json"):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"content" * 99)
    write_digests(tmp_path)
    write_digests(tmp_path)  # does not list itself
    return tmp_path


@pytest.mark.parametrize("name", ["weights.safetensors", "part/more.json"])
def test_every_flipped_bit_is_detected(directory: Path, name: str) -> None:
    check_digests(directory)
    content = (directory / name).read_bytes()
    for position in (0, 300, len(content) - 1):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            (directory / name).write_bytes(changed)
            assert damaged_files(directory) == [name]
    (directory / name).write_bytes(content[:-1])
    with pytest.raises(UserError, match="is damaged: it has changed since"):
        check_digests(directory, [name, "unknown"])
    (directory / name).unlink()
    assert damaged_files(directory) == [name] and not damaged_files(directory, ["empty.json"])
    with pytest.raises(UserError, match=r"(weights\.safetensors|more\.json) is missing\n"):
        check_digests(directory)


def test_the_model_card_may_be_edited_and_digests_may_be_missing(directory: Path) -> None:
    (directory / "README.md").write_text("mine")
    check_digests(directory)
    (directory / DIGESTS).write_text('{"files": 3}')
    assert damaged_files(directory) == [DIGESTS]
    (directory / DIGESTS).unlink()
    (directory / "weights.safetensors").write_text("mine")
    check_digests(directory)
