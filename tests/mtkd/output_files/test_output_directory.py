"""Output directories: another process that writes during the check, and files of others."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtkd.output_files import output_directory
from mtkd.output_files.output_directory import CLAIM, OutputKind, check_directory, open_directory
from tasks.common.errors import UserError
from tasks.common.files import disk_errors
from tasks.common.locks import LOCK


def identity_of(directory: Path) -> Any:
    file = directory / "manifest.json"
    return json.loads(file.read_text()) if file.exists() else None


THING = OutputKind("thing", "manifest.json", (r"manifest\.json", r"\d\.txt"), identity_of)


def start(out: Path) -> None:
    """Create the files of another process that has just started to write an output."""
    (out / CLAIM).write_text('{"format": 1, "output": "thing", "identity": "a"}')
    (out / "0.txt").touch()


def test_a_process_that_starts_during_the_check_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = output_directory.visible_files

    def list_too_late(directory: Path) -> Iterator[str]:
        if not (directory / CLAIM).exists():
            start(directory)
        return listed(directory)

    monkeypatch.setattr(output_directory, "visible_files", list_too_late)
    assert check_directory(tmp_path, THING, "a")


def test_a_process_that_finishes_during_the_check_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


LISTED = replace(
    THING,
    files=(*THING.files, r"list\.json"),
    variable=(r"\d\.txt",),
    listed=lambda path: json.loads((path / "list.json").read_text()),
)


@pytest.fixture
def finished_output(tmp_path: Path) -> Path:
    """A finished output with two files."""
    (tmp_path / "manifest.json").write_text('"b"')
    (tmp_path / "list.json").write_text('["0.txt", "1.txt"]')
    for number in range(2):
        (tmp_path / f"{number}.txt").touch()
    return tmp_path


def test_a_file_that_a_finished_output_does_not_list_is_not_removed(finished_output: Path) -> None:
    (finished_output / "7.txt").write_text("work of years")
    before = sorted(file.name for file in finished_output.iterdir())
    with pytest.raises(UserError, match=r"do not belong to a thing: 7\.txt\n"):
        check_directory(finished_output, LISTED, "a", overwrite=True)
    assert sorted(file.name for file in finished_output.iterdir()) == before
    (finished_output / "7.txt").unlink()
    with open_directory(finished_output, LISTED, "a", overwrite=True):
        assert sorted(file.name for file in finished_output.iterdir()) == [CLAIM, LOCK]


def test_an_interrupted_removal_of_listed_files_is_finished(
    finished_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def killed(path: Path, **options: Any) -> None:
        unlink(path, **options)
        if path.name == "0.txt":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        with open_directory(finished_output, LISTED, "a", overwrite=True):
            pass
    assert (finished_output / "1.txt").exists() and (finished_output / "list.json").exists()
    with open_directory(finished_output, LISTED, "a", overwrite=True):
        assert sorted(file.name for file in finished_output.iterdir()) == [CLAIM, LOCK]


@pytest.mark.parametrize("parts", [0, 1])
def test_the_error_for_a_full_disk_says_whether_parts_are_kept(parts: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the disk is full") as full, open_directory(tmp_path, THING, "a"):
        for part in range(parts):
            (tmp_path / f"{part}.txt").touch()
        with disk_errors(tmp_path / "9.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
    kept = "; finished parts are kept" if parts else ""
    assert full.value.hint == f"free some disk space and run the same command again{kept}"
