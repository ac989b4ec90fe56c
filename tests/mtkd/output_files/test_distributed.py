"""Processes that share the shards of a corpus."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtkd.output_files.distributed import ALONE, join_process_group, locked_by_main_process
from tasks.common.locks import LockedError, locked
from tasks.data.corpus_reader import read_corpus


@pytest.mark.parametrize("world", [None, "1"])
def test_without_a_launcher_there_is_one_process(world: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    assert join_process_group() is ALONE and ALONE.is_main and (ALONE.rank, ALONE.count) == (0, 1)
    ALONE.wait()


def test_two_launched_processes_write_identical_output(
    tmp_path: Path, processes: Any, mtkd: Callable
) -> None:
    words = ("augment", "mask", "--data", "pocket", "--tasks", "rte,sst2", "--limit", 40, "--copies", 3)
    words = (*words, "--quiet", "--out")
    assert mtkd(*words, tmp_path / "one").code == 0
    done = processes.run(*words, tmp_path / "two", count=2)
    assert done.code == 0, done.err
    one, two = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "data").iterdir()}
        for name in ("one", "two")
    )
    assert one == two and len(one) == 2
    assert read_corpus(tmp_path / "one").shards == read_corpus(tmp_path / "two").shards


def test_an_error_of_the_first_process_is_printed_only_once(tmp_path: Path, processes: Any) -> None:
    words = ("augment", "mask", "--data", "pocket", "--tasks", "rte", "--limit", 8, "--quiet")
    with locked(tmp_path / "out"):
        done = processes.run(*words, "--out", tmp_path / "out", count=2)
    assert done.code == 2 and "another process is writing" in done.err
    assert "lost the connection to another process" in done.err and "Traceback" not in done.err


def test_a_waiting_job_reports_once_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mtkd.output_files.distributed._LOCK_WAIT", 0.1)
    release = threading.Timer(1.0, lambda: held.close())
    with contextlib.ExitStack() as held:
        held.enter_context(locked(tmp_path / "logits"))
        release.start()
        with locked_by_main_process(tmp_path / "logits", ALONE):
            with pytest.raises(LockedError), locked(tmp_path / "logits"):
                pass
            assert release.finished.is_set()
    printed = capsys.readouterr().err
    assert printed == f"waiting for another command, which is writing {tmp_path / 'logits'}\n"
    with locked_by_main_process(tmp_path / "logits", ALONE):
        pass
    assert capsys.readouterr().err == "", "nothing is printed for a free lock"


@pytest.mark.slow(reason="waits for a lock")
def test_processes_wait_for_a_lock_longer_than_for_each_other(tmp_path: Path, processes: Any) -> None:
    def release() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.05)
        time.sleep(8)  # seconds; the processes wait for each other 4 at most
        held.close()

    with contextlib.ExitStack() as held:
        held.enter_context(locked(tmp_path / "logits"))
        thread = threading.Thread(target=release)
        thread.start()
        done = processes.run(tmp_path, count=2, call="resuming_processes:wait_for_lock")
        thread.join()
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.glob("rank-*")) == ["rank-0", "rank-1"]
    assert done.err.count("waiting for another command") == 1
