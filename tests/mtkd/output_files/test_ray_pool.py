"""Ray clusters that a command starts or connects to."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError

pytest.importorskip("ray", reason="Ray is not installed")


def die_once(died: Path) -> str:
    """Kill the first worker that calls this."""
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_messages_of_ray_do_not_mix_with_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray prints to standard output that a worker died; `--json` writes its results there."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    handler, printed = signal.getsignal(signal.SIGTERM), capsys.readouterr()
    with Workers(1, "ray").open() as pool:
        assert pool.result(pool.submit(die_once, tmp_path / "died")) == "done"
        deadline = time.monotonic() + 30  # the message is printed by a thread
        while "die_once" not in printed.out + printed.err and time.monotonic() < deadline:
            time.sleep(0.1)
            printed = capsys.readouterr()
    assert printed.out == "" and "Task die_once failed" in printed.err
    print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert signal.getsignal(signal.SIGTERM) == handler


def test_the_error_of_a_cluster_that_requires_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        cause = RuntimeError("Last connection error: ray.exceptions.AuthenticationError: token is missing")
        raise ConnectionError(f"Failed to connect to Ray cluster at {options['address']}") from cause

    monkeypatch.setattr("ray.init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"the Ray cluster at '{address}' requires a token"),
            Workers(1, "ray", address=address).open(),
        ):
            pass


def test_the_error_of_a_cluster_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"{address}\n", encoding="utf-8")
    for given in (address, "auto"):
        with (
            pytest.raises(UserError, match=f"there is no Ray cluster at '{given}': .*refused"),
            Workers(1, "ray", address=given).open(),
        ):
            pass
