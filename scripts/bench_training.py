"""Benchmark training: batches grouped by length against padding to 128, and the loop against bare steps.

The rows are from RTE, MRPC, STS-B and SST-2. The model has the size of TinyBERT (4 layers, 312 wide) or is
static (averaged token vectors), and has random weights. It is trained on labels. Two comparisons run in
alternating rounds:

1. the training loop with batches grouped by length, and the same loop with every sequence padded to 128;
2. the training loop, and bare steps: forward, backward, clipping and optimiser step on prepared batches.

    python scripts/bench_training.py --data ../shared/data
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from measuring import TINYBERT_4, device_time

from mtkd.device import keep_memory
from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.pretrained_config import TransformerConfig, locate
from mtkd.models.encoders.static import StaticConfig, StaticEncoder
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.train_settings import TrainSettings
from mtkd.training.batches import DrawnRows, TaskBatches
from mtkd.training.processes import make_accelerator
from mtkd.training.trainer import Trainer
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task import Task
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.tokeniser import Tokeniser


def make_trainer(
    student: str,
    tasks: list[Task],
    rows: dict[str, Encoded],
    tokeniser: Tokeniser,
    *,
    group_by_length: bool,
    precision: str,
    directory: Path,
) -> Trainer:
    """Build a trainer with a new model; without grouping, every sequence is padded to 128 tokens."""
    torch.manual_seed(0)
    vocabulary = tokeniser.vocab_size
    encoder = (
        TransformerEncoder(TransformerConfig(hf=TINYBERT_4 | {"vocab_size": vocabulary}))
        if student == "tinybert"
        else StaticEncoder(StaticConfig(vocab_size=vocabulary))
    )
    model = MultiTaskModel(encoder, tasks, tokeniser, ModelInfo(max_length=128))
    batch_size = 32 if student == "tinybert" else 128  # as in the recipes
    settings = TrainSettings(batch_size=batch_size, group_by_length=group_by_length, precision=precision)
    trainer = Trainer(
        make_accelerator(),
        model,
        labels_objective(),
        TaskBatches(
            {task.name: task for task in tasks},
            rows,
            Collator(model.reader, pad_to=None if group_by_length else 128),
            settings,
        ),
        settings,
        directory,
        evaluate=lambda model: [],
    )
    trainer.start()
    return trainer


def one_epoch(trainer: Trainer) -> None:
    """Run one epoch of the training loop, with its logs."""
    trainer.notify("on_train_begin")
    with trainer.batches.epoch(0, 0, {}) as steps:
        for batches in steps:
            trainer.step(batches)
            trainer.position.step += 1
            trainer.notify("on_step_end")
    trainer.notify("on_train_end")


def bare_loop(trainer: Trainer, draws: list[DrawnRows]) -> Callable[[], None]:
    """Forward, backward, clipping and optimiser step on batches that were collated beforehand."""
    module, tasks = trainer.train_module, trainer.tasks
    # The loop's own optimiser: the state of a second one lies elsewhere in memory, and its steps took a
    # different time.
    optimizer = trainer.parallel.optimizer
    collate, device = trainer.batches.source.collate, trainer.accelerator.device
    batches = [collate(draw.rows, draw.indices).to(device) for draw in draws]

    def run() -> None:
        optimizer.grad_scale = None  # type: ignore[attr-defined]  # by which the loop's steps clip
        for batch in batches:
            counts = [len(batch)]
            loss, _ = module(tasks[batch.task], batch, None, counts, 0.0, counts)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def in_turn(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each function, in alternation, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = device_time()
            way()
            if number:
                seconds[name].append(device_time() - started)
    return seconds


def report(title: str, seconds: dict[str, list[float]], rows: int) -> None:
    """Print rows per second of each function, and the ratio of the first to the second."""
    print(f"\n{title}")
    for name, values in seconds.items():
        print(f"  {name}: {rows / statistics.median(values):.1f} rows/s")
    first, second = seconds.values()
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    print(f"  ratio: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


@click.command()
@click.option("--data", required=True, help="a directory with glue/rte, mrpc, stsb, sst2")
@click.option("--rows", "count", default=256, show_default=True, help="rows per task")
@click.option("--rounds", default=5, show_default=True)
@click.option("--student", type=click.Choice(["tinybert", "static"]), default="tinybert", show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
def main(data: str, count: int, rounds: int, student: str, precision: str) -> None:
    """Print both comparisons."""
    tasks = resolve("rte,mrpc,stsb,sst2")
    tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))
    rows = {t.name: Encoded.encode(load_rows(open_data(data), t, "train", count), tokeniser) for t in tasks}
    with tempfile.TemporaryDirectory() as temporary, keep_memory():
        grouped, padded = (
            make_trainer(
                student,
                tasks,
                rows,
                tokeniser,
                group_by_length=group,
                precision=precision,
                directory=Path(temporary) / str(group),
            )
            for group in (True, False)
        )
        reader = grouped.train_module.model.reader
        lengths = np.concatenate([reader.lengths(part.texts) for part in rows.values()])
        total = len(lengths)
        print(
            f"{total} rows, mean length {lengths.mean():.1f} tokens, {torch.get_num_threads()} threads, "
            f"{grouped.accelerator.device}"
        )
        draws = list(grouped.batches.source.epoch(0, 0, {}))
        ways = {
            "grouped by length": lambda: one_epoch(grouped),
            "padded to 128": lambda: one_epoch(padded),
        }
        report("one epoch of the training loop", in_turn(ways, rounds), total)
        ways = {"training loop": ways["grouped by length"], "bare steps": bare_loop(grouped, draws)}
        report("the training loop and bare steps on the same batches", in_turn(ways, rounds), total)


if __name__ == "__main__":
    main()
