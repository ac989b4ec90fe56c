"""Saving and loading the weights of modules in which several names stand for one tensor (tied weights).

safetensors files hold each tensor once.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def tensors_to_save(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module on the CPU; tied ones only under the first of their names."""
    state = module.state_dict()
    return {
        name: state[name].detach().cpu().contiguous()
        for name, first in _first_names(module).items()
        if name == first
    }


def with_tied_names(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that `tensors_to_save` returned, with all names of those that are tied in the module."""
    tied = {name: weights[first] for name, first in _first_names(module).items() if first in weights}
    return {**weights, **tied}


def _first_names(module: nn.Module) -> dict[str, str]:
    """For each name of a tensor, the first of all names of this tensor."""
    first: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    return {name: first.setdefault(id(value), name) for name, value in state.items()}
