"""The global state of torch that callers can change, and on which the results of mtkd must not depend."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

from tasks.common.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_AUTOCAST_DEVICES = ("cpu", "cuda", "mps")
_training = threading.RLock()  # held by the thread that trains


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Use torch's own defaults inside the block, and the caller's state again after it.

    These are the default dtype float32, the default device CPU, no autocast, and gradients (no `no_grad` or
    `inference_mode`).
    """
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as state:
        state.enter_context(torch.inference_mode(False))
        state.enter_context(torch.enable_grad())
        for device in filter(torch.is_autocast_enabled, _AUTOCAST_DEVICES):
            state.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device() != torch.device("cpu"):
            state.enter_context(torch.device("cpu"))
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            state.callback(torch.set_default_dtype, dtype)
        yield


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restore torch's global random number generators after the block, also if it fails."""
    state, seed = torch.get_rng_state(), torch.initial_seed()
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if gpu_states is not None:
            torch.cuda.set_rng_state_all(gpu_states)
        elif torch.cuda.is_initialized():  # inside the block; nothing has been drawn on a GPU before it
            torch.cuda.manual_seed_all(seed)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's global random number generators of the CPU and of one other device, in microseconds.

    `torch.manual_seed` takes a tenth of a millisecond or more, because it records a stack trace for each kind
    of device that is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def with_torch_defaults(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: call the function inside `torch_defaults`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch_defaults():
            return function(*args, **kwargs)

    return call


def isolated(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: as `with_torch_defaults`, and the caller's random numbers are not used up or reseeded."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch_defaults(), random_numbers_kept():
            return function(*args, **kwargs)

    return call


def trains(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for functions that train: as `isolated`, and only one thread can train at a time.

    Training seeds torch's global generators, which all threads of a process share.

    Raises:
        UserError: another thread of this process is training.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _training.acquire(blocking=False):
            raise UserError(
                "another thread of this process is training: two trainings would change each other's random "
                "numbers",
                expected="one training at a time in a process",
                hint="train one model after the other, or in separate processes",
            )
        try:
            with torch_defaults(), random_numbers_kept():
                return function(*args, **kwargs)
        finally:
            _training.release()

    return call
