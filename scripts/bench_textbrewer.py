"""Benchmark mtkd training steps against TextBrewer: MiniLMv2 and TinyBERT's general distillation.

The teacher is a BERT-base with random weights, and the students are 6x384 and 4x312. Both sides train on
plain text in fp32 with AdamW and gradient clipping. TextBrewer's loop trains on random batches that are
padded to their longest row. After every block of its steps, mtkd's Trainer takes equally many steps on the
same rows, once in length buckets and once in random batches. Texts are tokenised beforehand. The script first
checks that both losses agree on one batch without padding. Finally, each side trains in a separate process to
measure its peak memory in addition to the weights.

TextBrewer 0.2.1.post1 runs unmodified on current torch and transformers. It has no MiniLMv2 loss, so the loss
is added as its documentation describes: hooks record the queries, keys and values of the last layer, the
adaptor returns them as hidden states, and `register_new` adds a loss that computes the softmax of every
relation head and leaves the gradient to autograd. (Its `custom_matches` fail because of the typo
"match_weghts".) TinyBERT uses eager attention with `output_attentions` and `output_hidden_states`, and
TextBrewer's losses `attention_mse` and `hidden_mse`. Its attention loss compares probabilities, whereas mtkd
compares scores, as in the paper; if both are given scores, they agree.

Install TextBrewer in a separate virtual environment that can import the packages of mtkd's environment:

    python -m venv /tmp/tbvenv
    echo "import site; site.addsitedir('$PWD/.venv/lib/python3.11/site-packages')" \\
        > /tmp/tbvenv/lib/python3.11/site-packages/mtkd.pth
    /tmp/tbvenv/bin/pip install --no-deps textbrewer==0.2.1.post1
    /tmp/tbvenv/bin/python scripts/bench_textbrewer.py ../shared/data/wiki/corpus.parquet
"""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import click
import numpy as np
import torch
from measuring import device_time, extra_memory, restart_keeping_memory
from textbrewer_runs import JOBS, Job, Rows, TextBrewerSide, att_mse_loss, make_trainer, padded, train
from torch import Tensor

from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.training.trainer import Trainer
from tasks.data.plain_text import TEXT_TASK, TextFiles
from tasks.tokens.encoding import Encoded

Block = dict[str, Rows]  # the rows of one round, "in buckets" and "at random"


def open_texts(data: Path | None, sentences: bool, directory: Path) -> TextFiles:
    """The texts of a file or their sentences; without a file, random words of realistic lengths."""
    if data and data.exists() and not sentences:
        return TextFiles.open(data)
    if data and data.exists():
        texts = next(TextFiles.open(data).chunks()).to_pylist()
        lines = [s for text in texts for s in re.split(r"(?<=[.!?])\s+", text) if len(s.split()) > 2]
    else:
        words = ["a", "river", "of", "the", "old", "town", "was", "named", "after", "its", "king"]
        draws = np.random.default_rng(0)
        counts = np.exp(draws.normal(3.5, 0.6, 4096)).astype(int).clip(3, 126)
        lines = [" ".join(draws.choice(words, count)) for count in counts]
    file = directory / "texts.txt"
    file.write_text("\n".join(line.replace("\n", " ") for line in lines), encoding="utf-8")
    return TextFiles.open(file)


def draw_blocks(
    trainer: Trainer, batch: int, steps: int, rounds: int, seed: int
) -> tuple[Encoded, list[Block]]:
    """The rows of the first chunk of texts, and the batches of each round, sampled evenly by length.

    Without such sampling, short rounds would differ in length by chance. In each round, the random batches
    have the same rows as the length buckets.
    """
    draws = list(islice(trainer.batches.source.epoch(0, 0, {}), 1920 // batch))
    drawn, pool = [draw.indices for draw in draws], draws[-1].rows
    assert draws[-1].cursor["texts"] == 0, "all of one chunk"
    lengths = pool.texts[0].lengths
    full = sorted((rows for rows in drawn if len(rows) == batch), key=lambda rows: lengths[rows].max())
    random = np.random.default_rng(seed)
    strata = [random.permutation(part) for part in np.array_split(np.array(full), steps)]
    blocks = []
    for number in range(rounds):
        bucketed = [stratum[number % len(stratum)] for stratum in strata]
        mixed = random.permutation(np.concatenate(bucketed)).reshape(steps, batch)
        blocks.append(
            {"in buckets": [bucketed[n] for n in random.permutation(steps)], "at random": list(mixed)}
        )
    return pool, blocks


def check(job: Job, trainer: Trainer, other: TextBrewerSide, pool: Encoded, count: int) -> None:
    """Print the losses of both sides on one batch of equally long rows, without dropout.

    Raises:
        AssertionError: the losses differ although they have the same definition.
    """
    lengths = pool.texts[0].lengths
    rows = np.flatnonzero(lengths == np.bincount(lengths).argmax())[:count]
    inner, source, distiller = trainer.train_module.eval(), trainer.teacher, other.distiller
    assert source is not None
    device = trainer.accelerator.device
    batch = trainer.batches.source.collate(pool, rows).to(device)
    with torch.no_grad():
        teacher = source.outputs(TEXT_TASK, batch)
        counts = inner.objective.num_items(TEXT_TASK, batch)
        _, values = inner(TEXT_TASK, batch, teacher, counts, 0.0, counts)
        student = inner.model(batch.inputs, TEXT_TASK.head, inner.objective.student_need)
        distiller.model_T.eval(), distiller.model_S.eval()
        inputs = {name: value.to(device) for name, value in next(iter(padded(pool, trainer, [rows]))).items()}
        total, parts = distiller.train_on_batch(inputs, other.more)
    inner.train()
    terms = dict(zip(inner.objective.terms, values.tolist(), strict=True))
    if job.relations:
        pairs = {"relations": (terms["relation"], float(total))}
    else:
        hidden = [float(value) for name, value in parts.items() if "hidden_mse" in name]
        layers = zip(student.scores.values(), teacher.scores.values(), strict=True)
        scores = sum(float(att_mse_loss(s, t, inputs["attention_mask"])) for s, t in layers)
        pairs = {
            "embedding": (terms["embedding"], hidden[0]),
            "hidden states": (terms["hidden"], sum(hidden[1:])),
            "attention, given the scores": (terms["attention"], scores),
        }
        probabilities = sum(float(value) for name, value in parts.items() if "attention_mse" in name)
        print(f"  attention: mtkd {terms['attention']:.6g}, textbrewer (probabilities) {probabilities:.6g}")
    for name, (loss, reference) in pairs.items():
        difference = abs(loss / reference - 1)
        print(f"  {name}: mtkd {loss:.7g}, textbrewer {reference:.7g}, relative difference {difference:.1e}")
        if difference > 1e-4:
            raise AssertionError(f"the losses differ: {name}")


def in_turn(
    trainer: Trainer, other: TextBrewerSide, pool: Encoded, blocks: list[Block]
) -> dict[str, list[float]]:
    """Seconds per block after the first, which warms up; mtkd's blocks run between TextBrewer's."""
    seconds: dict[str, list[float]] = {"textbrewer": [], **{f"mtkd {way}": [] for way in blocks[0]}}

    def feeding() -> Iterator[dict[str, Tensor]]:
        for block in blocks:
            batches = padded(pool, trainer, block["at random"])
            started = device_time()
            yield from batches  # TextBrewer trains on each batch before it asks for the next
            seconds["textbrewer"].append(device_time() - started)
            for way, rows in block.items():
                started = device_time()
                train(trainer, pool, rows)
                seconds[f"mtkd {way}"].append(device_time() - started)
        yield from batches  # one more step, which is not counted, because its loop ends without asking again

    other.train(feeding(), sum(len(block["at random"]) for block in blocks) + 1)
    return {name: times[1:] for name, times in seconds.items()}


def report(seconds: dict[str, list[float]], pool: Encoded, blocks: list[Block], extra: int) -> None:
    """Print rows and real tokens per second, the padded length, and the ratio to TextBrewer."""
    lengths = pool.texts[0].lengths + extra
    tokens = [lengths[np.concatenate(block["at random"])] for block in blocks]
    print(f"  mean length {np.concatenate(tokens).mean():.1f} tokens")
    for name, times in seconds.items():
        way = "in buckets" if name.endswith("in buckets") else "at random"
        padding = np.mean([lengths[rows].max() for block in blocks for rows in block[way]])
        rows_s = statistics.median(len(n) / t for n, t in zip(tokens, times, strict=True))
        tokens_s = statistics.median(n.sum() / t for n, t in zip(tokens, times, strict=True))
        ratios = [a / b for a, b in zip(seconds["textbrewer"], times, strict=True)]
        print(
            f"  {name:15}: {rows_s:6.2f} rows/s, {tokens_s:6.0f} tokens/s, padded to {padding:.0f}; "
            f"ratio: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def memory_of_steps(side: str, job: Job, data: Path | None, sentences: bool, batch: int) -> float:
    """Peak memory in megabytes of two steps on the longest rows, in addition to what was loaded before."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        trainer = make_trainer(job, open_texts(data, sentences, home), batch, home / "mtkd")
        other = TextBrewerSide(job, trainer, home / "textbrewer", False) if side == "textbrewer" else None
        pool, _ = draw_blocks(trainer, batch, 1, 1, 0)
        rows = list(np.argsort(-pool.texts[0].lengths, kind="stable")[: 2 * batch].reshape(2, batch))
        batches = padded(pool, trainer, rows)
        ctypes.CDLL(None).malloc_trim(0)  # memory freed after loading must not hide what the steps need
        if other:
            return extra_memory(lambda: other.train(batches, len(rows)))
        return extra_memory(lambda: train(trainer, pool, rows))


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option("--job", "names", type=click.Choice(list(JOBS)), multiple=True, help="Run only this method.")
@click.option("--batch", default=16, show_default=True, help="Rows per batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=8, show_default=True, help="Steps per side and round.")
@click.option("--seed", default=0, show_default=True, help="Seed for choosing the rows.")
@click.option("--sentences", is_flag=True, help="Split the texts into sentences.")
@click.option("--fused", is_flag=True, help="Use fused AdamW for TextBrewer too; mtkd always does.")
@click.option("--bf16-teacher", is_flag=True, help="Time mtkd with teacher.precision=bf16.")
@click.option("--memory/--no-memory", default=True, show_default=True)
def main(
    data: Path | None,
    names: tuple[str, ...],
    batch: int,
    rounds: int,
    steps: int,
    seed: int,
    sentences: bool,
    fused: bool,
    bf16_teacher: bool,
    memory: bool,
) -> None:
    """Print losses, speed and memory."""
    torch.manual_seed(seed)
    for name in names or JOBS:
        job = JOBS[name]
        print(f"{name}: batches of {batch}, {torch.get_num_threads()} threads")
        with tempfile.TemporaryDirectory() as temporary:
            home = Path(temporary)
            trainer = make_trainer(job, open_texts(data, sentences, home), batch, home / "mtkd")
            other = TextBrewerSide(job, trainer, home / "textbrewer", fused)
            pool, (first, *blocks) = draw_blocks(trainer, batch, steps, rounds + 1, seed)
            check(job, trainer, other, pool, batch)
            if bf16_teacher and isinstance(trainer.teacher, OnlineTeacher):
                need = trainer.train_module.objective.teacher_need
                trainer.teacher = OnlineTeacher(trainer.teacher.model, need, "bf16")
            if rounds:
                layout = trainer.train_module.model.tokeniser.layout(1)
                warmup = {way: rows[-1:] for way, rows in first.items()}
                seconds = in_turn(trainer, other, pool, [warmup, *blocks])
                report(seconds, pool, blocks, layout.n_specials)
        for side in ("textbrewer", "mtkd") if memory else ():
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as new_process:
                extra = new_process.submit(memory_of_steps, side, job, data, sentences, batch).result()
            print(f"  {side}: {extra:.0f} MB of additional peak memory")


if __name__ == "__main__":
    restart_keeping_memory()
    main()
