"""Atomic file operations, locks, digests, and errors."""

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

from tasks.common.errors import UserError
from tasks.common.files import (
    atomic_directory,
    atomic_path,
    directory_for,
    disk_errors,
    is_temporary,
    move_files,
    plain_path,
    staged_directory,
    write_text,
)
from tasks.common.locks import LOCK, locked
from tasks.common.sha256 import digest_bytes, digest_file


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_file_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("first")
        assert not path.exists() and is_temporary(temporary)
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("sec")
        assert path.read_text() == "first"
        raise KeyboardInterrupt
    assert path.read_text() == "first" and names(path.parent) == {"file.txt"}


def test_leftovers_of_killed_processes_are_removed_but_not_files_of_live_ones(tmp_path: Path) -> None:
    leftover = tmp_path / ".rows.jsonl.0123456789abcdef.tmp"
    leftover.write_text("half")
    others = [tmp_path / ".rows.jsonl.bak", tmp_path / ".rows.0123456789abcdef.tmp"]
    for file in others:
        file.touch()
    with atomic_path(tmp_path / "rows.jsonl", alone=True) as first:
        assert not leftover.exists()
        with atomic_path(tmp_path / "rows.jsonl", alone=True) as second:  # another process
            assert first.exists() and first != second
            second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "rows.jsonl").read_text() == "first"
    assert names(tmp_path) == {"rows.jsonl", *(file.name for file in others)}


def test_hidden_files_of_libraries_do_not_stay_if_the_process_is_killed(tmp_path: Path) -> None:
    path, tensors = tmp_path / "out" / "a.safetensors", {"a": np.arange(3)}
    with locked(path.parent), atomic_path(path) as temporary, directory_for(temporary) as file:
        save_file(tensors, file)
    before = path.read_bytes()
    with locked(path.parent):
        assert names(path.parent) == {"a.safetensors", LOCK}
        child = os.fork()
        if not child:
            with atomic_path(path) as temporary, directory_for(temporary) as file:
                (file.parent / ".tmpAbCdEf").write_bytes(b"unfinished, as safetensors 0.8 writes it")
                os._exit(1)
        os.waitpid(child, 0)
        assert len(names(path.parent)) == 4
    with locked(path.parent):
        assert names(path.parent) == {"a.safetensors", LOCK} and path.read_bytes() == before


def test_a_link_stays_a_link_and_a_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    with pytest.raises(UserError, match="cannot be replaced"):
        write_text(tmp_path, "text")


def test_a_directory_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
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


def test_staged_files_join_those_of_the_user_and_the_marker_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    out, moved = tmp_path / "out", []
    (out / "thesis.tex").write_text("work of years")
    replace = os.replace

    def recorded(source: Path, target: Path) -> None:
        moved.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", recorded)
    for text in ("one", "two"):
        with staged_directory(out, "a.json") as staged:
            for name in ("a.json", "b/c.txt", "d.txt"):
                (staged / name).parent.mkdir(exist_ok=True)
                (staged / name).write_text(text)
    with pytest.raises(ValueError, match="stop"), staged_directory(out, "a.json") as staged:
        (staged / "a.json").write_text("three")
        raise ValueError("stop")
    assert moved == ["c.txt", "d.txt", "a.json"] * 2 and out.is_symlink()
    assert names(out) == {"a.json", "b", "d.txt", "thesis.tex"} and (out / "a.json").read_text() == "two"
    with pytest.raises(UserError, match="is a file"), staged_directory(out / "d.txt"):
        pass
    move_files(out / "b", out / "e")
    move_files(out / "d.txt", out / "f.txt")
    assert names(out) == {"a.json", "e", "f.txt", "thesis.tex"}


def test_a_temporary_file_never_replaces_an_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    (tmp_path / "victim").write_text("work of years")
    (tmp_path / f".a.txt.{'0' * 16}.tmp").symlink_to("victim")
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a.txt", "text")
    assert (tmp_path / "victim").read_text() == "work of years" and len(names(tmp_path)) == 2


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "a/../../b", "a//b", "./a", "", ".", "a\\b"])
def test_a_manifest_names_only_files_inside_its_directory(name: str) -> None:
    assert plain_path("shards/a-00000.safetensors") == "shards/a-00000.safetensors"
    with pytest.raises(ValueError, match="is not the path of a file inside"):
        plain_path(name)


def test_a_lock_excludes_other_processes_until_it_is_released(tmp_path: Path) -> None:
    code = "from pathlib import Path; from tasks.common.locks import locked\nwith locked(Path('out')): pass"
    other = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with locked(tmp_path / "out"):
        refused = subprocess.run(other, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and "another process is writing" in refused.stderr
    half = f".a.json.{'1' * 16}.tmp"
    for name in (half, ".a.json.12.tmp"):
        (tmp_path / "out" / name).touch()
    assert subprocess.run(other, cwd=tmp_path, env=environment).returncode == 0
    assert names(tmp_path / "out") == {".mtkd.lock", ".a.json.12.tmp"}, "only names that mtkd gives"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"), locked(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space"), "the disk is full"),
        (OSError(errno.EDQUOT, "Quota"), "the disk is full"),
        (OSError(errno.EFBIG, "File too large"), "the limit of its size"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (PermissionError(errno.EACCES, "no"), "cannot write"),
    ],
)
def test_disk_errors_name_the_path(error: Exception, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught, disk_errors(tmp_path / "x"):
        raise error
    assert str(tmp_path / "x") in str(caught.value) and "kept" not in str(caught.value)
    with pytest.raises(OSError, match="input"), disk_errors(tmp_path / "x"):
        raise OSError(errno.EIO, "input or output")


def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file"):
        write_text(tmp_path / "file/page.html", "x")


def test_digests_of_files(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 999
    (tmp_path / "file").write_bytes(raw)
    assert digest_file(tmp_path / "file") == hashlib.sha256(raw).hexdigest()
    assert (
        digest_bytes("ab", b"c") == hashlib.sha256(b"\2" + b"\0" * 7 + b"ab\1" + b"\0" * 7 + b"c").hexdigest()
    )
    assert len({digest_bytes("ab", "c"), digest_bytes("a", "bc"), digest_bytes("abc")}) == 3


def test_written_files_have_the_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    expected = (tmp_path / "plain").stat().st_mode
    with atomic_path(tmp_path / "one.safetensors") as temporary:
        save_file({"a": np.zeros(1)}, temporary)
    with atomic_directory(tmp_path / "two") as temporary:
        save_file({"a": np.zeros(1)}, temporary / "weights.safetensors")
    for file in (tmp_path / "one.safetensors", tmp_path / "two" / "weights.safetensors"):
        assert file.stat().st_mode == expected


def test_a_move_killed_after_its_last_file_is_completed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "empty").mkdir(parents=True)
    (target / "empty").mkdir(parents=True)
    (target / "empty" / "file").write_text("moved")
    move_files(source, target)
    assert not source.exists() and (target / "empty" / "file").read_text() == "moved"
