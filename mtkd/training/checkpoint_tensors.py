"""Checks of the tensors of a checkpoint, before a model or an optimiser loads any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tasks.common.errors import UserError

CHECKPOINT_WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


def require_fit(
    checkpoint: Path, module: nn.Module, saved: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
) -> None:
    """Check that the tensors are those of a model and of its optimiser.

    Args:
        saved: the weights of the checkpoint, with all names of tied ones.
        optimizer: as `mtkd.training.optimizers.optimizer_tensors` returns them.

    Raises:
        UserError: a tensor is missing, unknown, of another shape or of another kind of number.
    """
    problems = [
        *(f"{CHECKPOINT_WEIGHTS}: {problem}" for problem in _weight_problems(module.state_dict(), saved)),
        *(f"{OPTIMIZER}: {problem}" for problem in _state_problems(module, optimizer)),
    ]
    if problems:
        raise UserError(
            f"the checkpoint {checkpoint} does not fit the model: {problems[0]}",
            hint="delete it to resume from the checkpoint before it, if there is one; or start over with "
            "`overwrite=True`",
        )


def _weight_problems(expected: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Iterator[str]:
    yield from (f"{name!r} is missing" for name in expected if name not in saved)
    yield from (f"the model has no {name!r}" for name in saved if name not in expected)
    for name in expected.keys() & saved.keys():
        if problem := _difference(expected[name], saved[name]):
            yield f"{name!r} is {problem}"


def _difference(expected: Tensor, found: Tensor) -> str | None:
    if expected.shape != found.shape:
        return f"of the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    same = expected.is_floating_point() == found.is_floating_point() and not found.is_complex()
    return None if same else f"of the type {found.dtype}, not {expected.dtype}"


def _state_problems(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    params, slots = dict(module.named_parameters()), dict[str, set[str]]()
    for key, value in tensors.items():
        name, _, slot = key.rpartition("|")
        slots.setdefault(name, set()).add(slot)
        if name not in params:
            yield f"the model has no {name!r}"
        elif not _may_be_state(params[name], value):
            yield f"{key!r} is of the shape {tuple(value.shape)} and the type {value.dtype}"
    by_rank: dict[int, set[str]] = {}  # vectors may have other slots than matrices
    for name in slots.keys() & params.keys():
        usual = by_rank.setdefault(params[name].ndim, slots[name])
        if usual != slots[name]:
            yield f"{name!r} has {sorted(slots[name])}, and another parameter {sorted(usual)}"


def _may_be_state(param: Tensor, value: Tensor) -> bool:
    """True for a scalar, and for the shape of the parameter, in which axes may have size 1 (Adafactor)."""
    if value.dtype in (torch.bool, torch.complex64, torch.complex128):
        return False
    pairs = zip(value.shape, param.shape, strict=False)
    return not value.ndim or (value.ndim == param.ndim and all(one in (1, other) for one, other in pairs))
