"""Callbacks, including those that write logs, and training in a thread."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_students import SMALL_LSTM

import mtkd as api
from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from mtkd.training.callbacks import Callback, JsonLinesLog, ProgressBar, TrainingControl, TrainingState
from mtkd.training.prefetch import prefetched
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.common.text_format import score_text

SMALL = SMALL_LSTM | {"train.epochs": 3, "train.batch_size": 8}
TASKS = "sst2,rte"


class Recorder(Callback):
    """Records the name and state of every call."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, TrainingState]] = []
        self._stop_at = stop_at

    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        self.calls.append(("begin", state))

    def on_step_end(self, state: TrainingState, control: TrainingControl) -> None:
        self.calls.append(("step", state))
        control.should_training_stop = state.step == self._stop_at

    def on_evaluate(self, state: TrainingState, control: TrainingControl) -> None:
        self.calls.append(("evaluate", state))

    def on_save(self, state: TrainingState, control: TrainingControl) -> None:
        self.calls.append(("checkpoint", state))

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        self.calls.append(("end", state))

    def states(self, name: str) -> list[TrainingState]:
        return [state for called, state in self.calls if called == name]


def run(out: Path, teacher: Path, *callbacks: Callback, **changes: object) -> RunDirectory:
    settings = load_settings("mkd-lstm", "distill", {**SMALL, **changes})
    return distill(Request("pocket", TASKS, out, 40, 16), settings, str(teacher), callbacks=callbacks)


def test_callbacks_see_every_step_epoch_and_checkpoint(
    tiny_teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    done = run(tmp_path / "run", tiny_teacher, recorder)
    assert [name for name, _ in recorder.calls[:2]] == ["begin", "step"] and recorder.calls[-1][0] == "end"
    steps = recorder.states("step")
    assert [state.step for state in steps] == list(range(1, steps[0].total_steps + 1))
    assert {state.task for state in steps} == {"sst2", "rte"}
    assert len(recorder.states("evaluate")) == len(recorder.states("checkpoint")) == 3
    assert done.scores["rte/validation"]["task"] == "rte" and isinstance(done.model(), MultiTaskModel)
    printed = capsys.readouterr().err
    for number, state in enumerate(recorder.states("evaluate"), 1):
        assert f"epoch {number}: " in printed and set(state.scores) == {"sst2/validation", "rte/validation"}
        assert f"rte/validation {100 * state.scores['rte/validation']:.1f}" in printed


def test_scores_are_printed_in_percent_and_losses_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainingState("training", 1, 2, epoch=1, metric="rte/accuracy", value=0.65931)
    for scores, metric, shown in (
        ({"rte/validation": 0.65931}, "rte/accuracy", "epoch 1: rte/validation 65.9 (rte/accuracy 65.93)"),
        ({"rte/validation": 0.65931}, "loss", "epoch 1: rte/validation 65.9 (loss 0.6593)"),
        ({"text/held-out": 2.5}, "loss", "epoch 1: text/held-out 2.500 (loss 0.6593)"),
    ):
        ProgressBar().on_evaluate(replace(state, scores=scores, metric=metric), TrainingControl())
        assert capsys.readouterr().err == f"training: {shown}\n"
    (loss, accuracy) = (
        TaskScores("a", "b", 2, {name: 0.5}, 0.5, math.nan, 0.5) for name in ("loss", "accuracy")
    )
    assert repr(loss) == "<TaskScores a/b, 2 rows: loss 0.500>"
    assert repr(accuracy) == "<TaskScores a/b, 2 rows: accuracy 50.0>"
    assert score_text(math.nan) == "-"


def test_the_log_holds_means_per_task_over_its_window(tiny_teacher: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    run(tmp_path / "run", tiny_teacher, recorder)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    windows = [record for record in records if "lr" in record]
    start = 0
    for record in windows:
        steps = [s for s in recorder.states("step") if start < s.step <= record["step"]]
        for task in {state.task for state in steps}:
            losses = [state.loss for state in steps if state.task == task and state.loss is not None]
            assert record[f"loss/{task}"] == pytest.approx(sum(losses) / len(losses))
        values = [state.terms["logits"] for state in steps]
        assert record["loss/logits"] == pytest.approx(sum(values) / len(values))
        start = record["step"]
    assert start == recorder.states("end")[0].step
    scored = [record for record in records if "watched" in record]
    assert [record["epoch"] for record in scored] == [1, 2, 3] and "score/rte/validation" in scored[0]


def test_a_term_is_logged_from_the_step_that_switches_it_on(tiny_teacher: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    labels = {"terms.labels.loss": "labels", "terms.labels.weight": [[0.5, 0.0], [0.5, 1.0]]}
    run(tmp_path / "run", tiny_teacher, recorder, **labels)
    steps = recorder.states("step")
    half = steps[0].total_steps // 2
    assert [set(state.terms) for state in steps[:half]] == [{"logits"}] * half
    assert [set(state.terms) for state in steps[half:]] == [{"logits", "labels"}] * half


def test_a_callback_stops_training(
    tiny_teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(stop_at=13)
    done = run(tmp_path / "run", tiny_teacher, recorder)
    assert recorder.states("step")[-1].step == 13 == done.record["training"]["steps"]
    assert recorder.states("end")[0].stopped and len(recorder.states("evaluate")) == 2
    assert "stopped early at epoch 2" in capsys.readouterr().err


def test_control_takes_bools_of_numpy_and_nothing_else() -> None:
    control = TrainingControl()
    control.should_training_stop = np.mean([0.5]) < 1
    assert control.should_training_stop is True
    for value in ("yes", 1, None):
        with pytest.raises(UserError, match=r"`control.should_training_stop` cannot be"):
            control.should_training_stop = value  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="should_stop"):
        control.should_stop = True  # type: ignore[attr-defined]
    assert control.should_training_stop is True


def test_the_log_can_be_followed_and_is_cut_at_the_checkpoint(tmp_path: Path) -> None:
    def state(step: int) -> TrainingState:
        return TrainingState("t", step, 100, task="rte", loss=float(step), lr=0.1)

    log, control = JsonLinesLog(tmp_path), TrainingControl()
    log.on_train_begin(state(0), control)
    for step in range(1, 41):
        log.on_step_end(state(step), control)
        if step == 25:
            size, unlogged = log.size, log.unlogged
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss/rte"] for line in lines] == [1.0, 11.0, 30.5], (
        "written while the run goes on"
    )
    log.on_train_end(state(40), control)
    raw = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl").write_bytes(b"\0" + raw[1:])  # a damaged line is kept, and causes no error
    again = JsonLinesLog(tmp_path)
    again.cut(size + 5)
    again.restore(unlogged)
    again.on_train_begin(state(25), control)
    again.on_step_end(state(26), control)
    again.on_train_end(state(26), control)
    *lines, last = (tmp_path / "log.jsonl").read_text().splitlines()
    assert lines[0][0] == "\0" and [json.loads(line)["step"] for line in lines[1:]] == [20]
    assert json.loads(last) == {"step": 26, "lr": 0.1, "loss": 23.5, "loss/rte": 23.5}


def test_a_run_in_a_thread_gives_the_same_model_and_leaves_no_thread(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    here = run(tmp_path / "here", tiny_teacher).model().state_dict()
    before = set(threading.enumerate())
    thread = threading.Thread(target=run, args=(tmp_path / "there", tiny_teacher))
    thread.start()
    thread.join()
    assert set(threading.enumerate()) <= before
    there = MultiTaskModel.load(tmp_path / "there").state_dict()
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_prefetched_items_keep_their_order_and_their_errors() -> None:
    def failing() -> Iterator[int]:
        yield from range(10)
        raise ValueError("at the end")

    before, found = set(threading.enumerate()), []
    with pytest.raises(ValueError, match="at the end"), prefetched(failing(), 3) as items:
        found.extend(items)
    assert found == list(range(10)) and set(threading.enumerate()) <= before


def test_prefetching_is_bounded_and_ends_with_its_block() -> None:
    made: list[int] = []

    def counting() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    before = set(threading.enumerate())
    with prefetched(counting(), 3) as items:
        assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    in_use, ready, in_work = 6, 3, 3
    assert set(threading.enumerate()) <= before and len(made) <= in_use + ready + in_work


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("on_stepp", 2, "has an unknown method 'on_stepp' (did you mean 'on_step_end'?)"),
        ("on_step", 2, "has an unknown method 'on_step' (did you mean 'on_step_end'?)"),
        ("on_save", 1, "has a method 'on_save' that takes other arguments: too many positional arguments"),
        ("on_save", 3, "has a method 'on_save' that takes other arguments: missing a required argument: 'c'"),
    ],
)
def test_a_method_that_cannot_be_called_is_an_error_before_training(
    name: str, arguments: int, problem: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    method = {1: lambda self, a: None, 2: lambda self, a, b: None, 3: lambda self, a, b, c: None}[arguments]
    wrong = type("Mine", (Recorder,), {name: method})()
    with pytest.raises(UserError) as error:
        api.distill(
            "mkd-lstm",
            teacher=tiny_teacher,
            data="pocket",
            tasks=TASKS,
            out=tmp_path / "run",
            callbacks=[Recorder(), wrong],
        )
    assert error.value.problem == f"the callback Mine {problem}"
    assert not (tmp_path / "run").exists()
