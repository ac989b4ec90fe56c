"""Pressing Ctrl-C once or repeatedly ends a pool of processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import signal, time
from mtkd.output_files.worker_pools import Workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with Workers(2).open() as pool:
    running = [pool.submit(time.sleep, 0)]
    while True:
        running += [pool.submit(time.sleep, 0.2) for _ in range(10)]
        pool.result(running.pop(0))
        print("working", flush=True)
"""

IMPORTING = """
import os, time
from mtkd.output_files.worker_pools import Workers

os.environ["PYTHONPATH"] = {paths!r}
with Workers(2).open() as pool:
    running = [pool.submit(time.sleep, 0) for _ in range(2)]
    for handle in running:
        pool.result(handle)
print("finished")
"""
SLOW = """
import os, time
os.write(1, b"%d\\n" % os.getpid())
time.sleep(1)
"""


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.3])
def test_pressing_ctrl_c_twice_ends_all_processes(gap: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as main:
        try:
            assert main.stdout is not None and main.stdout.readline() == b"working\n"
            for _ in range(2):
                os.killpg(main.pid, signal.SIGINT)
                time.sleep(gap)
            _, printed = main.communicate(timeout=60)  # until no process is left that could print anything
            assert b"KeyboardInterrupt" in printed
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(main.pid, signal.SIGKILL)


def test_ctrl_c_is_left_to_the_parent_while_workers_start(tmp_path: Path) -> None:
    """`sitecustomize` is imported by every Python process before any module of mtkd."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    words = [sys.executable, "-c", IMPORTING.format(paths=os.pathsep.join([str(tmp_path), *sys.path]))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as main:
        assert main.stdout is not None
        for _ in range(3):  # two workers, and Python's process that tracks semaphores
            os.kill(int(main.stdout.readline()), signal.SIGINT)
        assert main.communicate(timeout=60) == (b"finished\n", b"")
