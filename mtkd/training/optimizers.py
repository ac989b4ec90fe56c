"""Optimisers, learning rate schedules, and saving the state of an optimiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mtkd.train_settings import TrainSettings

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda params, **options: torch.optim.Adam(params, fused=True, **options),
    "adamw": lambda params, **options: torch.optim.AdamW(params, fused=True, **options),
    "adadelta": lambda params, **options: torch.optim.Adadelta(params, rho=0.95, **options),
    "adafactor": torch.optim.Adafactor,
}


def build_optimizer(module: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Build the optimiser of a run; biases and norms (vectors) get no weight decay."""
    params = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
    ]
    all_options = {"lr": settings.peak_lr, "betas": settings.betas, "eps": settings.eps}
    options = {name: value for name, value in all_options.items() if value is not None}
    return OPTIMIZERS[settings.optimizer]([group for group in groups if group["params"]], **options)


def learning_rate(settings: TrainSettings, step: int, total: int, hold: float = 0.0) -> float:
    """The learning rate of one step.

    It rises linearly to `lr` over the first `warmup * total` steps, or the first `warmup` steps if that is
    1 or more. Then it stays constant (`constant`), or falls linearly to 0 at step `total` (`linear`),
    starting at step `hold * total`.

    Args:
        step: the step, counted from 0.
        total: steps of the whole run.
        hold: the fraction of the steps, 0 to 1, during which the rate does not fall.
    """
    warm = int(settings.warmup * total if settings.warmup < 1 else min(settings.warmup, total))
    top = total if settings.schedule == "constant" else max(warm, round(hold * total))
    return linear_rate(settings.peak_lr, step, total, warm, top)


def linear_rate(highest: float, step: int, total: int, warm: int, top: int) -> float:
    """A learning rate that rises for `warm` steps, is constant until step `top` and falls to 0 at `total`."""
    if step < warm:
        return highest * (step + 1) / (warm + 1)
    return highest if step < top else highest * (total - step) / max(total - top, 1)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors ("parameter|slot"), for safetensors."""
    return {
        f"{name}|{slot}": torch.as_tensor(value).detach().cpu()
        for name, param in module.named_parameters()
        for slot, value in optimizer.state.get(param, {}).items()
    }


def restore_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Restore a state returned by `optimizer_tensors`."""
    params = dict(module.named_parameters())
    for key, value in tensors.items():
        name, _, slot = key.rpartition("|")
        optimizer.state[params[name]][slot] = value.to(params[name].device)
