"""Benchmark mtkd's dropout, attention with dropout, and linear layers against those of torch on a CPU.

Forward and backward passes are timed together, and for linear layers the forward pass is also timed alone.
Both libraries run in alternation. The script prints median times, and the median and quartiles of the ratios.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mtkd.device import keep_memory
from mtkd.models.fast_dropout import dropout, dropout_attention
from mtkd.models.fast_linear import Linear

P = 0.1
HIDDEN = ((32, 40, 384), (16, 128, 312))  # B, L, d
ATTENTION = ((32, 12, 40, 32), (16, 12, 128, 26))  # B, heads, L, d
LINEAR = ((768, 768), (768, 3072), (3072, 768), (384, 1536), (312, 1200))  # inputs, outputs
ROWS = 1360  # of a linear layer's input: 16 texts of 85 tokens


def seconds(run: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> float:
    """The time of a forward pass, and of a backward pass to the inputs if there are any."""
    started = time.perf_counter()
    outputs = run()
    if inputs:
        torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), allow_unused=True)
    return time.perf_counter() - started


def report(
    name: str,
    of_mtkd: Callable[[], Tensor],
    of_torch: Callable[[], Tensor],
    inputs: tuple[Tensor, ...],
    rounds: int,
) -> None:
    """Time both in turn and print milliseconds and ratios."""
    times = np.array([(seconds(of_mtkd, inputs), seconds(of_torch, inputs)) for _ in range(rounds + 3)])[3:]
    mtkd_time, torch_time = 1000 * np.median(times, 0)
    low, ratio, high = np.percentile(times[:, 1] / times[:, 0], (25, 50, 75))
    speeds = f"{torch_time:8.2f} ms torch{mtkd_time:8.2f} ms mtkd"
    print(f"{name:42}{speeds}   {ratio:5.1f}x ({low:.1f} to {high:.1f})")


@click.command(help=__doc__)
@click.option("--rounds", default=30, show_default=True, help="Timed rounds.")
@click.option("--threads", default=1, show_default=True, help="Threads of torch.")
@keep_memory()  # as every training job does
def main(rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    for kind in (torch.float32, torch.bfloat16):
        short = str(kind).removeprefix("torch.")
        for shape in HIDDEN:
            values = torch.randn(shape, dtype=kind, requires_grad=True)
            report(
                f"dropout {shape} {short}",
                lambda v=values: dropout(v, P),  # type: ignore[misc]
                lambda v=values: functional.dropout(v, P),  # type: ignore[misc]
                (values,),
                rounds,
            )
        for batch, heads, length, width in ATTENTION:
            parts = tuple(
                torch.randn(batch, length, heads, width, dtype=kind).transpose(1, 2).requires_grad_()
                for _ in range(3)
            )
            for p in (P, 0.0):
                report(
                    f"attention {(batch, heads, length, width)} {short}, p = {p}",
                    lambda a=parts, p=p: dropout_attention(a[0], a[1], a[2], None, None, p),  # type: ignore[misc]
                    lambda a=parts, p=p: functional.scaled_dot_product_attention(*a, dropout_p=p),  # type: ignore[misc]
                    parts,
                    rounds,
                )
    for width, outputs in LINEAR:
        torch_layer, mtkd_layer = nn.Linear(width, outputs), Linear(width, outputs)
        values = torch.randn(ROWS, width, requires_grad=True)
        tensors = (values, mtkd_layer.weight, torch_layer.weight)
        for passes, inputs in (("forward", ()), ("forward and backward", tensors)):
            with torch.set_grad_enabled(bool(inputs)):
                report(
                    f"linear {(ROWS, width)} to {outputs}, {passes}",
                    lambda v=values, m=mtkd_layer: m(v),  # type: ignore[misc]
                    lambda v=values, m=torch_layer: m(v),  # type: ignore[misc]
                    inputs,
                    rounds,
                )


if __name__ == "__main__":
    main()
