"""Environment variables of launchers."""

from __future__ import annotations

import pytest

from mtkd.output_files.distributed import join_process_group, launch_errors
from mtkd.training.processes import make_accelerator
from tasks.common.errors import UserError
from tasks.common.launcher import ProcessRank, check_process_rank, process_rank
from tasks.common.progress import is_quiet

_ALL = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TWO = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for name in _ALL:
        monkeypatch.delenv(name, raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ProcessRank()),
        ({"RANK": "1"}, ProcessRank()),
        ({"WORLD_SIZE": "1"}, ProcessRank()),
        (_TWO, ProcessRank(1, 2)),
        ({**_TWO, "LOCAL_WORLD_SIZE": "2"}, ProcessRank(1, 2, 2)),
    ],
    indirect=["environment"],
)
def test_the_rank_of_a_process_is_read_from_the_environment(environment: None, expected: ProcessRank) -> None:
    assert process_rank() == check_process_rank() == expected
    assert is_quiet() is (expected.rank > 0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE is 'x'"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "٢"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE"),
        ({**_TWO, "RANK": "x"}, "RANK is 'x'"),
        ({**_TWO, "RANK": "2"}, "RANK is '2'"),
        ({**_TWO, "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({**_TWO, "LOCAL_RANK": "x"}, "LOCAL_RANK is 'x'"),
        ({**_TWO, "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE is '3'"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "LOCAL_RANK and MASTER_ADDR and MASTER_PORT are not set"),
        ({"LOCAL_RANK": "3"}, "LOCAL_RANK is set, but WORLD_SIZE is not"),
    ],
    indirect=["environment"],
)
def test_invalid_environment_variables_are_named(environment: None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        join_process_group()


def test_errors_of_accelerate_name_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "x")
    with pytest.raises(UserError, match=r"(?s)invalid truth value.*ACCELERATE_USE_CPU"), launch_errors():
        raise ValueError("invalid truth value x")


@pytest.mark.parametrize("environment", [{**_TWO, "LOCAL_WORLD_SIZE": "2"}], indirect=True)
def test_processes_do_not_share_a_gpu(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UserError, match="2 processes were started on a machine with 1 GPU"):
        join_process_group()
    with pytest.raises(UserError, match="2 processes were started on a machine with 1 GPU"):
        make_accelerator()
