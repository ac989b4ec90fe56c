"""Masking with everything written to disk, against nlpaug's RandomWordAug in memory.

    python -m pip install nlpaug==1.1.11      # optional, no dependency of the project
    python scripts/bench_masking.py --data ../shared/data

Both models make masked copies of the same sentences in one process, in alternating rounds; the medians of
the copies per second are compared. Ours writes the corpus (parquet, manifest, card) in the measured time;
nlpaug writes nothing and is given fewer sentences, since its time grows with their number alone. Then
peak memory is measured at growing sizes, each in a process of its own. Without nlpaug its side is left out.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from augment.corpus_writer import CorpusJob, write_corpus
from augment.masking import Masking
from tasks.rows import Rows


def sentences(data: Path | None, count: int) -> list[str]:
    """`count` sentences: SST-2's training set in order, again from the start if need be, or generated."""
    file = data / "glue/sst2/train.parquet" if data else None
    if file and file.is_file():
        lines = pq.read_table(file, columns=["sentence"])["sentence"].to_pylist()
    else:
        draw = random.Random(0)
        vocabulary = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5000)]
        lines = [" ".join(draw.choices(vocabulary, k=draw.randint(1, 18))) for _ in range(count)]
    return (lines * (count // len(lines) + 1))[:count]


def mask_lines(lines: list[str], copies: int) -> None:
    """Ours: mask the lines and write the corpus to a new directory."""
    uids = pa.array([f"bench/train/{number}" for number in range(len(lines))])
    rows = Rows("bench", "train", uids, (pa.array(lines),), np.full(len(lines), np.nan))
    job = CorpusJob(Masking(p=0.1), {"bench": copies}, "sentences", "bench", "scripts/bench_masking.py")
    with tempfile.TemporaryDirectory() as directory:
        write_corpus(job, {"bench": rows}, Path(directory) / "corpus")


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_memory() -> str:
    """The process's peak resident size, as Linux has it (getrusage would count the parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("VmHWM"))


def compare(lines: list[str], copies: int, rounds: int, few: int) -> None:
    """Alternate the two models and print the ratio of their medians."""
    try:
        import nlpaug.augmenter.word as words
    except ImportError:
        words = None
        click.echo("nlpaug is not installed: its side is left out")
    theirs: list[float] = []
    ours: list[float] = []
    for number in range(rounds + 1):  # the first round warms up
        rate = len(lines) * copies / seconds(lambda: mask_lines(lines, copies))
        other = 0.0
        if words:
            masker = words.RandomWordAug(action="substitute", target_words=["[MASK]"], aug_p=0.1)
            other = (
                few * copies / seconds(lambda m=masker: [m.augment(line, n=copies) for line in lines[:few]])
            )
        if number:
            ours.append(rate)
            theirs.append(other)
            click.echo(f"round {number}: ours {rate:,.0f} copies/s, nlpaug {other:,.0f}")
    click.echo(f"median: ours {statistics.median(ours):,.0f} copies/s, written to disk")
    if words:
        ratio = statistics.median(ours) / statistics.median(theirs)
        click.echo(f"median: nlpaug {statistics.median(theirs):,.0f} copies/s, in memory; ratio {ratio:.1f}x")


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Directory with glue/sst2; generated text without."
)
@click.option("--rows", default=100_000, show_default=True, help="Sentences.")
@click.option("--few", default=2_000, show_default=True, help="Sentences given to nlpaug.")
@click.option("--copies", default=10, show_default=True, help="Copies of each.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--memory", is_flag=True, help="One run in this process, printing its peak memory alone.")
def main(data: Path | None, rows: int, few: int, copies: int, rounds: int, memory: bool) -> None:
    """Run the comparison, or with --memory one measurement."""
    if memory:
        lines = sentences(data, 10_000)
        mask_lines(lines, max(1, rows // len(lines)))
        click.echo(f"{rows:>9,} copies: peak {peak_memory()}")
        return
    compare(sentences(data, rows), copies, rounds, few)
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        arguments = ["--memory", "--rows", str(size), *(["--data", str(data)] if data else [])]
        subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
