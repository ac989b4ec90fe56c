"""The training loop: compared with a bare loop; micro-batches, resuming, and several processes."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted_shards import flip_a_bit
from safetensors.torch import load_file
from small_students import SMALL_LSTM, SMALL_TRANSFORMER

from mtkd.evaluation.scoring import TaskScores, selection_value
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.distillation.prepare import prepare_run
from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data, trainable_tasks
from mtkd.jobs.validation_scores import check_metric
from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from mtkd.training.checkpoint import save_checkpoint
from mtkd.training.interrupts import Interrupted
from mtkd.training.trainer import Trainer
from tasks.common.errors import UserError
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.sampler import TaskSampler

SMALL = SMALL_LSTM | {"train.epochs": 2}
TASKS = "sst2,rte,stsb"


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    """Return all weights of the model that a run has written."""
    return MultiTaskModel.load(out).state_dict()


def small(changes: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of the small student with some changes."""
    given = {**SMALL, **changes}
    if "train.batch_tokens" in changes:
        del given["train.batch_size"]
    return given


def student_after(out: Path, teacher: Path, **changes: object) -> dict[str, torch.Tensor]:
    """Distil a small student, and return its weights."""
    settings = load_settings("mkd-lstm", "distill", small(changes))
    distill(Request("pocket", TASKS, out, 40, 16), settings, str(teacher))
    return weights_of(out)


@pytest.fixture(scope="session")
def uninterrupted_student(tiny_teacher: Path, build_once: Callable[..., Path]) -> dict[str, torch.Tensor]:
    """The student after three epochs without an interruption."""
    changes = {"train.epochs": 3}
    return weights_of(build_once("straight-student", lambda out: student_after(out, tiny_teacher, **changes)))


@pytest.fixture(scope="session")
def without_dropout(tiny_teacher: Path, build_once: Callable[..., Path]) -> dict[str, torch.Tensor]:
    """The student after two epochs without dropout."""
    changes = {"student.dropout": 0.0}
    return weights_of(
        build_once("student-without-dropout", lambda out: student_after(out, tiny_teacher, **changes))
    )


def command(out: Path, teacher: Path, **changes: object) -> list[str]:
    """Return the same run as a command line."""
    sets = [word for key, value in small(changes).items() for word in ("--set", f"{key}={value}")]
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", TASKS, "--teacher", str(teacher)]
    return [*words, "--limit", "40", "--eval-limit", "16", "--out", str(out), *sets]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_training_matches_a_bare_pytorch_loop(tiny_teacher: Path, tmp_path: Path) -> None:
    changes = {"student.dropout": 0.0, "train.keep": "last", "train.max_grad_norm": 0.5}
    ours = student_after(tmp_path / "run", tiny_teacher, **changes)

    settings = load_settings("mkd-lstm", "distill", {**SMALL, **changes})
    teacher = MultiTaskModel.load(tiny_teacher)
    request = Request("pocket", TASKS, tmp_path / "bare", 40, 16)
    data = load_training_data(request, trainable_tasks(TASKS))
    validated = validate_run(settings, str(tiny_teacher), list(data.tasks.values()))
    student = prepare_run(validated).student.train()
    rows = {part.task.name: Encoded.encode(part.train, student.tokeniser) for part in data.parts}
    lengths = {name: student.reader.lengths(encoded.texts) for name, encoded in rows.items()}
    sampler = TaskSampler(lengths, 16, seed=0, epochs=2)
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-4)
    collate = Collator(student.reader, teacher.reader)
    for epoch in range(2):
        for draw in sampler.epoch(epoch):
            batch = collate(rows[draw.task], draw.indices)
            with torch.no_grad():
                wanted = teacher(batch.teacher, draw.task).logits
            loss = (student(batch.inputs, draw.task).logits - wanted).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 0.5)
            optimizer.step()
    assert_same(ours, student.state_dict(), atol=2e-5)


def test_four_micro_batches_are_one_large_batch(
    tiny_teacher: Path, tmp_path: Path, without_dropout: dict[str, torch.Tensor]
) -> None:
    parts = student_after(
        tmp_path / "parts", tiny_teacher, **{"student.dropout": 0.0, "train.micro_batch_size": 4}
    )
    assert_same(without_dropout, parts, atol=2e-5)


def test_cached_logits_give_the_same_student_as_the_teacher(tiny_teacher: Path, tmp_path: Path) -> None:
    teacher = shutil.copytree(tiny_teacher, tmp_path / "teacher")
    cached = student_after(tmp_path / "cached", teacher)
    online = student_after(tmp_path / "online", teacher, **{"teacher.cache_logits": False})
    assert_same(cached, online, atol=2e-5)
    for file in teacher.glob("logits-*/*/*.safetensors"):
        flip_a_bit(file)
    assert_same(cached, student_after(tmp_path / "healed", teacher))


def test_a_repeatedly_killed_run_ends_with_the_same_weights(
    tiny_teacher: Path,
    tmp_path: Path,
    processes: Any,
    mtkd: Callable[..., Any],
    uninterrupted_student: dict[str, torch.Tensor],
) -> None:
    changes = {"train.checkpoint_steps": 1, "train.epochs": 3}
    out = tmp_path / "killed"
    words = command(out, tiny_teacher, **changes)
    first = processes.run(*words, kill_at="*/checkpoints/step-000000003")
    # The second kill is during the writing of a checkpoint, so only the one before it is complete.
    second = processes.run(*words, kill_at="*/checkpoints/step-000000010", before=True)
    assert first.code == second.code == -signal.SIGKILL
    left = {path.name for path in (out / "checkpoints").glob("step-*")}
    assert left == {"step-000000008", "step-000000009"}
    done = mtkd(*words)
    assert done.code == 0, done.err
    assert_same(uninterrupted_student, weights_of(out))
    steps = [record["step"] for record in map(json.loads, (out / "log.jsonl").read_text().splitlines())]
    assert steps == sorted(steps) and not (out / "checkpoints").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_from_which_the_run_resumes(
    number: int,
    code: int,
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mtkd: Callable[..., Any],
    uninterrupted_student: dict[str, torch.Tensor],
) -> None:
    changes = {"train.epochs": 3}
    out, step = tmp_path / "run", Trainer.step

    def interrupted(self: Trainer, *given: Any) -> Any:
        if self.position.step == 6:
            signal.raise_signal(number)
        return step(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        stopped = mtkd(*command(out, tiny_teacher, **changes))
    assert stopped.code == code and "interrupted" in stopped.err and "Traceback" not in stopped.err
    assert json.loads((out / "checkpoints" / "step-000000007" / "position.json").read_text())["step"] == 7
    if number == signal.SIGTERM:
        flip_a_bit(out / "checkpoints" / "step-000000007" / "optimizer.safetensors")
    else:
        flip_a_bit(out / "log.jsonl", 10)
    resumed = mtkd(*command(out, tiny_teacher, **changes))
    assert resumed.code == 0
    assert ("step-000000007 is damaged" in resumed.err) == (number == signal.SIGTERM)
    assert ("records up to step 7 may be wrong" in " ".join(resumed.err.split())) == (number == signal.SIGINT)
    assert_same(uninterrupted_student, weights_of(out))


def test_a_signal_during_the_last_checkpoint_interrupts_the_run(
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted_student: dict[str, torch.Tensor],
) -> None:
    changes = {"train.epochs": 3}

    def interrupted(directory: Path, module: Any, optimizer: Any, position: Any) -> None:
        save_checkpoint(directory, module, optimizer, position)
        if position.epoch == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched, pytest.raises(Interrupted) as stopped:
        patched.setattr("mtkd.training.loop.save_checkpoint", interrupted)
        student_after(tmp_path / "run", tiny_teacher, **changes)
    assert stopped.value.exit_code == 143 and not (tmp_path / "run" / "model.safetensors").exists()
    assert_same(uninterrupted_student, student_after(tmp_path / "run", tiny_teacher, **changes))


def test_batches_of_a_token_budget_resume_and_take_micro_batches(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"train.batch_tokens": 200, "student.dropout": 0.0, "train.mixing": "sqrt"}
    alone = student_after(tmp_path / "alone", tiny_teacher, **changes)
    log = [json.loads(line) for line in (tmp_path / "alone" / "log.jsonl").read_text().splitlines()]
    steps = max(record["step"] for record in log)
    assert steps == json.loads((tmp_path / "alone" / "run.json").read_text())["training"]["steps"] > 16
    step = Trainer.step

    def interrupted(self: Trainer, *given: Any) -> Any:
        assert self.total == steps
        if self.position.step == steps - 3:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *given)

    changes["train.micro_batch_size"] = 3
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Trainer, "step", interrupted)
        student_after(tmp_path / "parts", tiny_teacher, **changes)
    assert_same(alone, student_after(tmp_path / "parts", tiny_teacher, **changes), atol=2e-5)


def test_a_student_with_tied_weights_is_saved(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = BiLSTMEncoder.__init__

    def build_tied(self: BiLSTMEncoder, *given: Any) -> None:
        build(self, *given)
        self.lstm.backwards = self.lstm.forwards

    monkeypatch.setattr(BiLSTMEncoder, "__init__", build_tied)
    weights = student_after(tmp_path / "run", tiny_teacher, **{"train.epochs": 1})
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert "lstm.forwards.weight_hh_l0" in saved and "lstm.backwards.weight_hh_l0" not in saved
    for name in ("forwards", "backwards"):
        assert torch.equal(weights[f"encoder.lstm.{name}.weight_hh_l0"], saved["lstm.forwards.weight_hh_l0"])


def test_damaged_weights_of_the_best_epoch_are_not_kept(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_epoch = Trainer.after_epoch

    def damaged(self: Trainer, losses: Any) -> None:
        after_epoch(self, losses)
        flip_a_bit(self._best_file)

    monkeypatch.setattr(Trainer, "after_epoch", damaged)
    with pytest.raises(UserError, match=r"best\.safetensors, is damaged: it has changed"):
        student_after(tmp_path / "run", tiny_teacher, **{"train.epochs": 1})


@pytest.mark.parametrize("epochs, size", [(1, {"train.batch_size": 15}), (2, {"train.batch_tokens": 250})])
def test_two_processes_match_one_process(
    tiny_teacher: Path, tmp_path: Path, epochs: int, size: dict[str, int], processes: Any
) -> None:
    changes = {"student.dropout": 0.0, "train.epochs": epochs, **size}
    alone = student_after(tmp_path / "alone", tiny_teacher, **changes)
    out = tmp_path / "both"
    done = processes.run(*command(out, tiny_teacher, **changes), count=2)
    assert done.code == 0, done.err
    assert_same(alone, weights_of(out), atol=5e-5)
    record = json.loads((out / "run.json").read_text())
    single = json.loads((tmp_path / "alone" / "run.json").read_text())
    for name, scores in single["scores"].items():
        assert record["scores"][name]["loss"] == pytest.approx(scores["loss"], rel=1e-3)


def test_checkpoints_of_a_stage_are_kept_until_all_processes_have_read_them(
    tiny_teacher: Path, tmp_path: Path, processes: Any
) -> None:
    sets = [word for key, value in SMALL_TRANSFORMER.items() for word in ("--set", f"{key}={value}")]
    words = ["distill", "tinybert-4", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher, *sets]
    words += ["--limit", 16, "--eval-limit", 8, "--epochs", 1, "--out", tmp_path / "run"]
    done = processes.run(*words, count=2, call="slow_processes:second_loads_late")
    assert done.code == 0, done.err


def test_the_first_process_decides_whether_the_run_is_finished(
    tiny_teacher: Path, tmp_path: Path, processes: Any
) -> None:
    words = command(tmp_path / "run", tiny_teacher, **{"train.epochs": 1})
    done = processes.run(*words, count=2, call="slow_processes:second_sees_a_finished_run")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


def test_a_loss_that_is_not_finite_stops_the_run(tiny_teacher: Path, tmp_path: Path) -> None:
    """Adadelta with a learning rate of 1e9 ruins the weights within a few steps; earlier weights are kept."""
    changes = {"train.lr": 1e9, "train.warmup": 0.9, "train.max_grad_norm": None, "train.epochs": 3}
    with pytest.raises(
        UserError, match=r"not finite at step \d+ \(task '(sst2|rte|stsb)'\); .*checkpoint"
    ) as error:
        student_after(
            tmp_path / "run",
            tiny_teacher,
            **changes,
            **{"train.checkpoint_steps": 1, "train.optimizer": "adadelta"},
        )
    hint = "a lower learning rate (`lr=...`) or a longer warm-up (`train.warmup=...`)"
    assert error.value.hint == f"start over (`overwrite=True`) with {hint}"
    for kept in (tmp_path / "run" / "checkpoints").glob("step-*"):
        assert all(torch.isfinite(value).all() for value in load_file(kept / "weights.safetensors").values())


def test_early_stopping_ends_before_the_last_epoch(tiny_teacher: Path, tmp_path: Path) -> None:
    student_after(
        tmp_path / "run",
        tiny_teacher,
        **{"train.epochs": 40, "train.patience": 2, "train.metric": "stsb/pearson", "train.lr": 1e-9},
    )
    training = json.loads((tmp_path / "run" / "run.json").read_text())["training"]
    assert training["epochs"] < 40
    assert training["best"] == max(record["stsb/pearson"] for record in training["history"])


def test_an_unknown_metric_for_the_best_epoch_is_rejected() -> None:
    with pytest.raises(UserError, match=r"rte/acuracy.*did you mean 'rte/accuracy'"):
        check_metric("rte/acuracy", trainable_tasks(TASKS))


def test_splits_of_a_task_are_averaged_before_tasks_are() -> None:
    found = [
        TaskScores("mnli", "validation_matched", 10, {"accuracy": 0.5}, 0.5, 0.3, 2.0),
        TaskScores("mnli", "validation_mismatched", 10, {"accuracy": 0.7}, 0.7, 0.3, 4.0),
        TaskScores("rte", "validation", 10, {"accuracy": 0.8}, 0.8, 0.5, 1.0),
    ]
    assert selection_value("mnli/accuracy", found) == pytest.approx(0.6)
    assert selection_value("score", found) == pytest.approx(0.7)
    assert selection_value("loss", found) == pytest.approx(2.0)


def test_bf16_stays_close_to_fp32(
    tiny_teacher: Path, tmp_path: Path, without_dropout: dict[str, torch.Tensor]
) -> None:
    wide, changes = without_dropout, {"student.dropout": 0.0, "train.precision": "bf16"}
    narrow = student_after(tmp_path / "narrow", tiny_teacher, **changes)
    assert all(value.dtype == torch.float32 for value in narrow.values())
    distance = [float((wide[name] - narrow[name]).abs().max()) for name in wide]
    assert 0 < np.max(distance) < 0.05
