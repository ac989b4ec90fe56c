"""Benchmark the relation loss against a naive version: time and memory of Q-Q + K-K + V-V, with gradients.

The naive version computes both softmaxes of every head for the whole padded batch and leaves the gradient to
autograd. Both run in alternating rounds of one process, and the median ratio is printed. Then each runs in a
separate process to measure its peak memory in addition to the operands. glibc's allocator would dominate the
time of the naive version, so the script restarts itself with a setting that keeps memory.

    python scripts/bench_relation.py
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import click
import torch
from measuring import extra_memory, restart_keeping_memory
from torch import Tensor

from mtkd.losses.relations import relation_kl

RELATION_HEADS, WIDTH_S, WIDTH_T, RELATIONS = 48, 384, 768, 3

RelationLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]


def naive(a_s: Tensor, b_s: Tensor, a_t: Tensor, b_t: Tensor, mask: Tensor, relation_heads: int) -> Tensor:
    """The same loss computed directly from its equations, with (B, relation_heads, L, L) matrices."""

    padding = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(a_s.dtype).min)[:, None, None, :]

    def log_relation(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.unflatten(-1, (relation_heads, -1)).transpose(1, 2) for x in (a, b))
        return (a / a.shape[-1] ** 0.5 @ b.mT + padding).log_softmax(-1)

    student, teacher = log_relation(a_s, b_s), log_relation(a_t, b_t)
    rows = (teacher.exp() * (teacher - student)).sum(-1)
    return (rows * mask.unsqueeze(1)).sum() / (mask.sum() * relation_heads)


def lengths(kind: str, rows: int, longest: int) -> Tensor:
    """Tokens per row: all `longest`, or lognormal with a mean near 40, between 10 and `longest`."""
    if kind == "full":
        return torch.full((rows,), longest)
    drawn = (torch.randn(rows) * 0.6 + 3.5).exp()
    return drawn.long().clamp(10, longest)


def operands(counts: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Random Q, K, V of student and teacher, padded to the longest row, with the mask."""
    rows, longest = len(counts), int(counts.max())
    student = [torch.randn(rows, longest, WIDTH_S, requires_grad=True) for _ in range(RELATIONS)]
    teacher = [torch.randn(rows, longest, WIDTH_T) for _ in range(RELATIONS)]
    return student, teacher, torch.arange(longest) < counts.unsqueeze(1)


def step(loss_function: RelationLoss, student: list[Tensor], teacher: list[Tensor], mask: Tensor) -> float:
    """Run forward and backward; returns the loss."""
    for x in student:
        x.grad = None
    loss = torch.stack(
        [loss_function(s, s, t, t, mask, RELATION_HEADS) for s, t in zip(student, teacher, strict=True)]
    ).sum()
    loss.backward()
    return loss.item()


def compare(kind: str, rows: int, longest: int, rounds: int, batches: int) -> None:
    """Alternate both versions on the same batches and print the median ratio."""
    torch.manual_seed(0)
    drawn = [lengths(kind, rows, longest) for _ in range(batches)]
    inputs = [operands(counts) for counts in drawn]
    seconds: dict[RelationLoss, list[float]] = {naive: [], relation_kl: []}
    for number in range(rounds + 1):  # the first round warms up
        for loss_function, times in seconds.items():
            started = time.perf_counter()
            losses = [step(loss_function, *batch) for batch in inputs]
            if number:
                times.append((time.perf_counter() - started) / batches)
            elif loss_function is naive:
                expected = losses
            elif not torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-4):
                raise AssertionError(f"the losses differ: {losses} and {expected}")
    slow, fast = seconds.values()
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    tokens = torch.cat(drawn).float().mean()
    print(
        f"{kind} length, {tokens:.0f} tokens per row: naive {statistics.median(slow) * 1e3:.0f} ms, "
        f"mtkd {statistics.median(fast) * 1e3:.0f} ms per batch; ratio: median "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def memory_of_step(name: str, rows: int, longest: int) -> float:
    """Peak memory of one step in megabytes, in addition to the operands; run in a new process."""
    loss_function: RelationLoss = {"naive": naive, "mtkd": relation_kl}[name]
    step(loss_function, *operands(torch.full((2,), 8)))  # torch loads libraries on the first call
    inputs = operands(torch.full((rows,), longest))
    return extra_memory(lambda: step(loss_function, *inputs))


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--rows", default=16, show_default=True, help="Rows per batch.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest row.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--batches", default=8, show_default=True, help="Batches of realistic lengths per round.")
def main(rows: int, longest: int, rounds: int, batches: int) -> None:
    """Print ratios and memory."""
    compare("full", rows, longest, rounds, 1)
    compare("real", rows, longest, rounds, batches)
    for name in ("naive", "mtkd"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as new_process:
            extra = new_process.submit(memory_of_step, name, rows, longest).result()
        print(f"{name}: {extra:.0f} MB of additional memory at full length")


if __name__ == "__main__":
    restart_keeping_memory()
    main()
