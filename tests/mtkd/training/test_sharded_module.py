"""Training with weights sharded across processes (FSDP): compared with DDP, and resumed without sharding."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_training import RECIPES
from small_students import SMALL_LSTM

from mtkd.models.multitask import MultiTaskModel
from mtkd.training.trainer import Trainer

FSDP = {"ACCELERATE_USE_FSDP": "true"}


def assert_close(one: Path, other: Path, atol: float) -> None:
    """Compare the weights of the models that two runs left."""
    first, second = (MultiTaskModel.load(out).state_dict() for out in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.slow(reason="trains in two processes, twice")
def test_training_with_sharded_weights_matches_ddp(
    tiny_teacher: Path, tmp_path: Path, processes: Any
) -> None:
    call = "sharded_training:train_both_ways"
    done = processes.run(tmp_path, tiny_teacher, count=2, call=call)
    assert done.code == 0, done.err
    for recipe in RECIPES:
        assert_close(tmp_path / "DDP" / recipe, tmp_path / "FSDP" / recipe, atol=2e-5)


def command(out: Path, teacher: Path, checkpoint_steps: int = 1) -> list[str]:
    """The command line of a small LSTM without dropout."""
    changes = {**SMALL_LSTM, "student.dropout": 0.0, "train.epochs": 2}
    changes |= {"train.checkpoint_steps": checkpoint_steps, "train.keep": "last"}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte,stsb", "--teacher", str(teacher)]
    return [*words, "--limit", "40", "--eval-limit", "8", "--out", str(out), *sets]


@pytest.mark.slow(reason="trains in several processes")
def test_a_run_can_resume_without_sharding_and_with_sharding_again(
    tiny_teacher: Path,
    tmp_path: Path,
    processes: Any,
    mtkd: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mtkd(*command(tmp_path / "straight", tiny_teacher)).code == 0
    out, step = tmp_path / "resumed", Trainer.step
    words = command(out, tiny_teacher)
    killed = processes.run(*words, count=2, env=FSDP, kill_at="*/checkpoints/step-000000003")
    assert killed.code, killed.err

    def interrupted(trainer: Trainer, *given: Any) -> Any:
        assert trainer.position.step >= 3
        if trainer.position.step == 5:
            signal.raise_signal(signal.SIGTERM)
        return step(trainer, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        assert mtkd(*words).code == 143
    done = processes.run(*words, count=2, env=FSDP)
    assert done.code == 0, done.err
    assert_close(tmp_path / "straight", out, atol=5e-5)


def test_processes_agree_when_a_checkpoint_is_due(tiny_teacher: Path, tmp_path: Path, processes: Any) -> None:
    """All processes take part in a checkpoint of sharded weights; otherwise they would wait forever."""
    words = command(tmp_path / "run", tiny_teacher, checkpoint_steps=100)
    done = processes.run(*words, count=2, env=FSDP, call="slow_processes:second_clock_is_fast")
    assert done.code == 0, done.err
