"""Errors of runs that other processes kill."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from mtkd.jobs.grid.grid_jobs import Job
from mtkd.jobs.grid.grid_scheduler import run_jobs


@pytest.mark.parametrize(
    ("signal", "problem"),
    [
        ("KILL", "it was killed (SIGKILL), perhaps because memory ran out"),
        ("SEGV", "it was killed (SIGSEGV)"),
    ],
)
def test_the_error_of_a_killed_run_names_the_signal_and_not_its_last_line(
    signal: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen

    def killed(argv: list[str], **options: Any) -> Any:
        return popen(["sh", "-c", f"echo '╰── a warning ──╯'; kill -{signal} $$"], **options)

    monkeypatch.setattr(subprocess, "Popen", killed)
    printed: list[str] = []
    job = Job(("distill", "static"), tmp_path / "run")
    assert run_jobs([job], 1, printed.append) == {job.out: problem}
    assert printed[-1] == f"failed: {problem} ({job.log})"
