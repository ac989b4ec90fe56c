"""Files that are whole or absent: what a reader sees at any moment, locks, digests, errors."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.errors import UserError
from tasks.files import (
    atomic_directory,
    atomic_path,
    digest_bytes,
    digest_file,
    disk_errors,
    drop_directory,
    is_temporary,
    locked,
    write_text,
)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_file_is_the_old_one_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("first")
        assert not path.exists() and is_temporary(temporary)
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("sec")
        assert path.read_text() == "first"
        raise KeyboardInterrupt
    assert path.read_text() == "first" and names(path.parent) == {"file.txt"}


def test_a_link_stays_a_link_and_a_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    with pytest.raises(UserError, match="is not a regular file"):
        write_text(tmp_path, "text")


def test_a_directory_is_the_old_one_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_directory(path) as temporary:
        (temporary / "a").write_text("1")
        assert not path.exists()
    with pytest.raises(ValueError, match="stop"), atomic_directory(path) as temporary:
        (temporary / "b").write_text("2")
        raise ValueError("stop")
    assert names(path) == {"a"} and names(tmp_path) == {"model"}
    with atomic_directory(path) as temporary:
        (temporary / "c").write_text("3")
    assert names(path) == {"c"} and names(tmp_path) == {"model"}


def test_dropping_a_directory_takes_what_killed_processes_left_of_it(tmp_path: Path) -> None:
    for name in ("run", ".run.1.old", ".other.1.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    drop_directory(tmp_path / "run")
    assert names(tmp_path) == {".other.1.old"}


def test_another_process_is_kept_out_and_let_in_when_this_one_is_done(tmp_path: Path) -> None:
    code = "from pathlib import Path; from tasks.files import locked\nwith locked(Path('out')): pass"
    other = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with locked(tmp_path / "out"):
        refused = subprocess.run(other, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and "another process is writing" in refused.stderr
    assert subprocess.run(other, cwd=tmp_path, env=environment).returncode == 0
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"), locked(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space"), "the disk is full"),
        (OSError(errno.EDQUOT, "Quota"), "the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (PermissionError(errno.EACCES, "no"), "cannot write"),
    ],
)
def test_disk_errors_name_the_path(error: Exception, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as caught, disk_errors(tmp_path / "x"):
        raise error
    assert str(tmp_path / "x") in str(caught.value)
    with pytest.raises(OSError, match="loop"), disk_errors(tmp_path / "x"):
        raise OSError(errno.ELOOP, "loop")


def test_digests(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 999
    (tmp_path / "file").write_bytes(raw)
    assert digest_file(tmp_path / "file") == hashlib.sha256(raw).hexdigest()
    assert (
        digest_bytes("ab", b"c") == hashlib.sha256(b"\2" + b"\0" * 7 + b"ab\1" + b"\0" * 7 + b"c").hexdigest()
    )
    assert len({digest_bytes("ab", "c"), digest_bytes("a", "bc"), digest_bytes("abc")}) == 3


def test_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    expected = (tmp_path / "plain").stat().st_mode
    with atomic_path(tmp_path / "one.safetensors") as temporary:
        save_file({"a": np.zeros(1)}, temporary)
    with atomic_directory(tmp_path / "two") as temporary:
        save_file({"a": np.zeros(1)}, temporary / "weights.safetensors")
    for file in (tmp_path / "one.safetensors", tmp_path / "two" / "weights.safetensors"):
        assert file.stat().st_mode == expected
