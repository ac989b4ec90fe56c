"""Linear layers in fp32 through oneDNN in place of MKL, torch's default, which is slow on AMD processors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_MIN_MULTIPLICATIONS = 1 << 22  # in smaller products, the overhead of the call dominates


class Linear(nn.Linear):
    """`torch.nn.Linear` with the same result up to rounding, through oneDNN where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        if not _worthwhile(input, self.weight):
            return super().forward(input)
        if torch.is_grad_enabled():
            return _Multiplied.apply(input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return _multiply(input, self.weight, self.bias)


def use_linear(module: nn.Module) -> None:
    """Turn every `torch.nn.Linear` inside a module into `Linear`; the weights stay the same tensors."""
    if has_slow_mkl():
        for child in module.modules():
            if type(child) is nn.Linear:
                child.__class__ = Linear


@cache
def has_slow_mkl() -> bool:
    """True on an AMD processor, where MKL leaves out its best code, if torch has oneDNN to replace it."""
    processor = Path("/proc/cpuinfo")
    return (
        hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.aten, "mkldnn_linear_backward_weights")
        and torch.backends.mkldnn.is_available()
        and processor.exists()
        and "AuthenticAMD" in processor.read_text(errors="replace")
    )


def _worthwhile(values: Tensor, weight: Tensor) -> bool:
    return (
        values.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and values.numel() * len(weight) >= _MIN_MULTIPLICATIONS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def _multiply(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")  # type: ignore[no-any-return]


class _Multiplied(torch.autograd.Function):
    """values @ weight.T + bias."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(values, weight)
        return _multiply(values, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        values, weight = ctx.saved_tensors
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _multiply(gradient, weight.t()) if needs_values else None,
            _weight_gradient(rows, values.flatten(0, -2), weight) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _weight_gradient(gradient: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """gradient.T @ values, of (n, outputs) and (n, inputs); of `weight`, only the shape is used."""
    # MKL uses no AVX-512 on AMD processors; without AVX-512, oneDNN is no faster for these shapes.
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return gradient.t() @ values
    if weight.shape[0] < weight.shape[1]:
        return _multiply(gradient.t(), values.t())  # transposes the gradient, which is narrow here
    of_weight, _ = torch.ops.aten.mkldnn_linear_backward_weights(
        gradient.to_mkldnn(), values.to_mkldnn(), weight, False
    )
    return of_weight  # type: ignore[no-any-return]
