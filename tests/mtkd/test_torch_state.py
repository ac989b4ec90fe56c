"""Results do not depend on the state of torch that a caller has set; afterwards, that state is the same."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from own_encoder import mean_encoder
from small_students import SMALL_LSTM

import mtkd as api
from mtkd.torch_state import seed_generators
from tasks.common.errors import UserError


class OnStep(api.Callback):
    """Calls a function after every step."""

    def __init__(self, function: Callable[[], object]):
        self.on_step_end = lambda state, control: function()  # type: ignore[method-assign]


def distill(out: Path, teacher: Path, **options: Any) -> api.Model:
    return api.distill(
        "mkd-lstm",
        **{"teacher": teacher, "data": "pocket", "tasks": "rte", "limit": 8, "eval_limit": 8, "steps": 2},
        out=out,
        **{"settings": SMALL_LSTM, **options},
    )


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)


def autocast() -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    "state",
    [
        lambda: default_dtype(torch.bfloat16),
        lambda: default_dtype(torch.float64),
        autocast,
        torch.inference_mode,
        lambda: torch.device("meta"),
    ],
    ids=["bfloat16", "float64", "autocast", "inference_mode", "meta"],
)
def test_predictions_do_not_depend_on_the_state(
    state: Callable[[], Any], tiny_teacher: Path, tmp_path: Path
) -> None:
    def predict() -> list[Any]:
        model = api.load(tiny_teacher)
        scores = api.evaluate(tiny_teacher, "pocket", "rte", limit=4)
        vectors = model.encode(["a film"]).tolist()
        return [model.predict("sst2", ["a film", "bad"]), vectors, scores["rte"].to_json()]

    expected = predict()
    with state():
        assert predict() == expected
        model = api.load(tiny_teacher).module
    assert all(p.requires_grad and not p.is_inference() for p in model.parameters())


def test_training_does_not_depend_on_the_state(tiny_teacher: Path, tmp_path: Path) -> None:
    expected = distill(tmp_path / "plain", tiny_teacher).module.state_dict()
    with default_dtype(torch.float64), autocast(), torch.inference_mode():
        found = distill(tmp_path / "other", tiny_teacher).module.state_dict()
        assert torch.is_autocast_enabled("cpu") and torch.is_inference_mode_enabled()
    assert all(found[name].dtype == w.dtype and found[name].equal(w) for name, w in expected.items())


def test_random_numbers_go_on_as_without_mtkd(tiny_teacher: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    found = [torch.rand(1).item()]
    assert api.load(tiny_teacher).module.training is False
    distill(tmp_path / "run", tiny_teacher)
    found.append(torch.rand(1).item())
    with pytest.raises(ZeroDivisionError):
        distill(tmp_path / "fails", tiny_teacher, callbacks=[OnStep(fail)])
    assert [*found, torch.rand(1).item()] == expected


def test_a_second_thread_cannot_train(tiny_teacher: Path, tmp_path: Path) -> None:
    trains, ends = threading.Event(), threading.Event()

    def wait() -> None:
        trains.set()
        assert ends.wait(60)

    options = {"callbacks": [OnStep(wait)]}
    thread = threading.Thread(target=distill, args=(tmp_path / "first", tiny_teacher), kwargs=options)
    thread.start()
    try:
        assert trains.wait(60)
        with pytest.raises(UserError, match="another thread of this process is training"):
            distill(tmp_path / "second", tiny_teacher)
        assert not (tmp_path / "second").exists()
    finally:
        ends.set()
        thread.join()
    assert api.load(tmp_path / "first") and distill(tmp_path / "second", tiny_teacher)


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (lambda: mean_encoder().double(), "the weights of `student` are float64"),
        (torch.inference_mode()(mean_encoder), "`student` was made inside `torch.inference_mode"),
    ],
    ids=["float64", "inference_mode"],
)
def test_an_encoder_that_cannot_be_trained_is_refused(
    encoder: Callable[[], Any], problem: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=problem):
        distill(tmp_path / "run", tiny_teacher, student=encoder(), settings={})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_seeded_generators_draw_what_manual_seed_draws(device: str) -> None:
    torch.manual_seed(2**63 + 5)
    expected = torch.rand(3)
    seed_generators(2**63 + 5, torch.device(device))
    assert torch.equal(torch.rand(3), expected)
