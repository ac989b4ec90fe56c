"""The relation loss against its naive form: time and memory of Q-Q + K-K + V-V, forward and backward.

The naive form makes both softmaxes of every head, of the whole padded batch, and leaves the gradient to
autograd. Both run in one process, in alternating rounds, and the median of the rounds' ratios is given;
then each runs in a process of its own for its peak memory on top of the operands. glibc's allocator would
dominate the naive form, so this script starts itself again with memory kept rather than given back.

    python scripts/bench_relation.py
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import torch
from torch import Tensor

from mtkd.losses.relations import relation_kl

SPLITS, WIDTH_S, WIDTH_T, RELATIONS = 48, 384, 768, 3
KEPT = str(1 << 32)
ALLOCATOR = f"glibc.malloc.mmap_threshold={KEPT}:glibc.malloc.trim_threshold={KEPT}"

Form = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]


def naive(a_s: Tensor, b_s: Tensor, a_t: Tensor, b_t: Tensor, mask: Tensor, splits: int) -> Tensor:
    """The same loss as its equations have it, over (B, splits, L, L) matrices."""

    padding = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(a_s.dtype).min)[:, None, None, :]

    def log_relation(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.unflatten(-1, (splits, -1)).transpose(1, 2) for x in (a, b))
        return (a / a.shape[-1] ** 0.5 @ b.mT + padding).log_softmax(-1)

    student, teacher = log_relation(a_s, b_s), log_relation(a_t, b_t)
    rows = (teacher.exp() * (teacher - student)).sum(-1)
    return (rows * mask.unsqueeze(1)).sum() / (mask.sum() * splits)


def lengths(kind: str, rows: int, longest: int) -> Tensor:
    """Tokens a row: all `longest`, or real ones, lognormal with a mean near 40, from 10 to `longest`."""
    if kind == "full":
        return torch.full((rows,), longest)
    drawn = (torch.randn(rows) * 0.6 + 3.5).exp()
    return drawn.long().clamp(10, longest)


def operands(counts: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Random Q, K, V of student and teacher, padded to the longest row, and the mask."""
    rows, longest = len(counts), int(counts.max())
    student = [torch.randn(rows, longest, WIDTH_S, requires_grad=True) for _ in range(RELATIONS)]
    teacher = [torch.randn(rows, longest, WIDTH_T) for _ in range(RELATIONS)]
    return student, teacher, torch.arange(longest) < counts.unsqueeze(1)


def step(form: Form, student: list[Tensor], teacher: list[Tensor], mask: Tensor) -> float:
    """Forward and backward; gives the loss."""
    for x in student:
        x.grad = None
    loss = torch.stack([form(s, s, t, t, mask, SPLITS) for s, t in zip(student, teacher, strict=True)]).sum()
    loss.backward()
    return loss.item()


def compare(kind: str, rows: int, longest: int, rounds: int, batches: int) -> None:
    """Alternate the forms over the same batches and print the median of the rounds' ratios."""
    torch.manual_seed(0)
    drawn = [lengths(kind, rows, longest) for _ in range(batches)]
    given = [operands(counts) for counts in drawn]
    seconds: dict[Form, list[float]] = {naive: [], relation_kl: []}
    for number in range(rounds + 1):  # the first round warms up
        for form, times in seconds.items():
            started = time.perf_counter()
            losses = [step(form, *batch) for batch in given]
            if number:
                times.append((time.perf_counter() - started) / batches)
            elif form is naive:
                expected = losses
            elif not torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-4):
                raise AssertionError(f"the forms differ: {losses} and {expected}")
    theirs, ours = seconds.values()
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    tokens = torch.cat(drawn).float().mean()
    print(
        f"{kind} length, {tokens:.0f} tokens a row: naive {statistics.median(theirs) * 1e3:.0f} ms, "
        f"ours {statistics.median(ours) * 1e3:.0f} ms a batch; ratio: median {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def extra_memory(name: str, rows: int, longest: int) -> float:
    """Megabytes that one step takes at its peak on top of the operands, in a process of its own."""
    form: Form = {"naive": naive, "ours": relation_kl}[name]
    step(form, *operands(torch.full((2,), 8)))  # load what torch loads at the first call
    given = operands(torch.full((rows,), longest))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making them
    before = status_bytes("VmRSS")
    step(form, *given)
    return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """A size in this process's status, such as VmRSS (now) or VmHWM (at its peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--rows", default=16, show_default=True, help="Rows a batch.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest row.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--batches", default=8, show_default=True, help="Batches of real lengths a round.")
def main(rows: int, longest: int, rounds: int, batches: int) -> None:
    """Print ratios and memory."""
    compare("full", rows, longest, rounds, 1)
    compare("real", rows, longest, rounds, batches)
    for name in ("naive", "ours"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            extra = fresh.submit(extra_memory, name, rows, longest).result()
        print(f"{name}: {extra:.0f} MB extra at full length")


if __name__ == "__main__":
    if os.environ.get("GLIBC_TUNABLES") != ALLOCATOR:
        os.environ["GLIBC_TUNABLES"] = ALLOCATOR
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
