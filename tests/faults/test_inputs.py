"""Wrong input of every kind gets one error and exit code 2: no traceback, no hang, nothing written.

The ordinary suite runs a sample. `MTKD_FAULTS=1 pytest tests/faults` runs all cases, which takes
about two hours of one core; MTKD_FAULTS=7 runs every seventh of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import wrong_inputs
from wrong_inputs.json_files import json_cases, valid_commands, value_cases
from wrong_inputs.tiny_inputs import Case, TinyInputs, remove, run

EVERY = int(os.environ.get("MTKD_FAULTS", "0"))
SAMPLE = (
    *("cli mask --copies", "cli mask --seed", "cli check --max-length", "task file (check) name"),
    *("task file (check) range", "task file (check) files", "task file NULs", "pipeline digits"),
    *("data check", "init ", "span.jsonl", "encoder config", "out mask", "endpoint", "recipe command"),
    *("special file", "special file data of init: loop", "special file unlabelled: loop", "overlap"),
)  # fmt: skip


def check(inputs: TinyInputs, case: Case, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = case.arguments(inputs, directory)
    (directory / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(directory / "work")
    answer, printed = run(arguments)
    allowed = ("refused",) if case.must_fail else ("refused", "accepted")
    assert answer in allowed, f"{answer}\n{printed}"
    if answer == "refused":
        assert "\x1b" not in printed.partition("error: ")[2], printed
        assert not list(directory.glob("out/**/*.safetensors")), "something was written"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_wrong_inputs_is_rejected(
    inputs: TinyInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tasks.common.progress._quiet", False)
    found = [case for case in wrong_inputs.cases() if case.name.startswith(name)]
    assert found, name
    for number, case in enumerate(found[:: max(1, len(found) // 4)]):
        (tmp_path / str(number)).mkdir()
        check(inputs, case, tmp_path / str(number), monkeypatch)


@pytest.mark.skipif(not EVERY, reason="takes minutes: set MTKD_FAULTS")
def test_the_commands_succeed_on_valid_input(
    inputs: TinyInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    for number, case in enumerate(valid_commands()):
        directory = tmp_path / str(number)
        (directory / "work").mkdir(parents=True)
        arguments = case.arguments(inputs, directory)
        monkeypatch.chdir(directory / "work")
        answer, printed = run(arguments)
        if answer != "accepted":
            refused.append(f"{case.name}: {answer}\n{printed}")
        remove(directory)
    assert not refused, "\n".join(refused)


@pytest.mark.skipif(not EVERY, reason="takes hours: set MTKD_FAULTS")
def test_all_wrong_inputs_are_rejected(
    inputs: TinyInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [*wrong_inputs.cases(), *json_cases(), *value_cases(inputs)][::EVERY]
    wrong = []
    for number, case in enumerate(cases):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            check(inputs, case, directory, monkeypatch)
        except AssertionError as error:
            wrong.append(f"{case.name}: {str(error).splitlines()[0]}")
        remove(directory)
    assert not wrong, "\n".join(wrong)
