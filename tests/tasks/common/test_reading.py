"""Small files are read completely; anything but a regular file is rejected before it is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.common import reading
from tasks.common.digests import DIGESTS, check_digests
from tasks.common.errors import UserError, did_you_mean_path
from tasks.common.reading import read_small_file, require_file
from tasks.common.records import read_record, read_toml


def _special(directory: Path, kind: str) -> Path:
    path = directory / "f"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        targets = {"device": "/dev/zero", "leads back to itself": "f", "does not exist": "nowhere"}
        path.symlink_to(targets[kind])
    return path


@pytest.mark.parametrize(
    "kind", ["named pipe", "directory", "device", "leads back to itself", "does not exist"]
)
def test_special_files_are_named_and_not_read(tmp_path: Path, kind: str) -> None:
    path = _special(tmp_path, kind)
    for read in (
        require_file,
        read_small_file,
        read_toml,
        lambda file: read_record(file, dict),
    ):
        with pytest.raises(UserError, match=kind):
            read(path)


def test_files_above_the_size_limit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("x" * 11)
    assert read_small_file(tmp_path / "f", 11) == b"x" * 11
    with pytest.raises(UserError, match="more than 10 bytes"):
        read_small_file(tmp_path / "f", 10)
    assert reading.MAX_BYTES > 1 << 20


def test_a_path_with_a_null_character_is_rejected() -> None:
    with pytest.raises(UserError, match="null"):
        read_small_file(Path("a\0b"))


def test_a_missing_file_is_never_suggested_for_itself(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("")
    assert "data.csv" in did_you_mean_path(tmp_path / "dato.csv")
    assert did_you_mean_path(tmp_path / "data.csv") == ""


@pytest.mark.parametrize("kind", ["named pipe", "directory"])
def test_special_files_in_place_of_digests_are_not_taken_for_missing_digests(
    tmp_path: Path, kind: str
) -> None:
    _special(tmp_path, kind).rename(tmp_path / DIGESTS)
    with pytest.raises(UserError, match=kind):
        check_digests(tmp_path)
