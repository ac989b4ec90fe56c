"""Directories that another process starts to write, or finishes, while they are being checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtkd.output_files import output_directory
from mtkd.output_files.output_directory import CLAIM, OutputKind, check_directory
from tasks.common.errors import UserError


def identity_of(directory: Path) -> Any:
    file = directory / "manifest.json"
    return json.loads(file.read_text()) if file.exists() else None


THING = OutputKind("thing", "manifest.json", (r"manifest\.json", r"\d\.txt"), identity_of)


def start(out: Path) -> None:
    """What another process leaves that has just started to write a thing."""
    (out / CLAIM).write_text('{"format": 1, "output": "thing", "identity": "a"}')
    (out / "0.txt").touch()


def test_another_process_starts_during_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = output_directory.visible_files

    def list_too_late(directory: Path) -> Iterator[str]:
        if not (directory / CLAIM).exists():
            start(directory)
        return listed(directory)

    monkeypatch.setattr(output_directory, "visible_files", list_too_late)
    assert check_directory(tmp_path, THING, "a")


def test_another_process_finishes_during_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    read = output_directory.read_record

    def read_too_late(file: Path, *args: Any, **more: Any) -> Any:
        if file.exists():
            (tmp_path / "manifest.json").write_text('"a"')
            file.unlink()
        return read(file, *args, **more)

    monkeypatch.setattr(output_directory, "read_record", read_too_late)
    assert check_directory(tmp_path, THING, "a")
    with pytest.raises(UserError, match="holds another thing"):
        check_directory(tmp_path, THING, "b")
