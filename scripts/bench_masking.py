"""Benchmark masking, including writing to disk, against nlpaug's in-memory RandomWordAug.

    python -m pip install nlpaug==1.1.11      # optional, not a dependency of the project
    python scripts/bench_masking.py --data ../shared/data

Both libraries make masked copies of the same sentences in alternating rounds of one process, and the median
copies per second are compared. mtkd's time includes writing the corpus (parquet, manifest, card). nlpaug
writes nothing and gets fewer sentences, because its time is proportional to their number. Peak memory is then
measured at growing sizes, each in a separate process. Without nlpaug, only mtkd is measured.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import seconds, status_bytes

from augment.corpus_writer import CorpusSpec, write_corpus
from augment.masking import Masking
from tasks.data.rows import Rows


def sentences(data: Path | None, count: int) -> list[str]:
    """Return `count` sentences: SST-2's training set, repeated as often as needed, or generated ones."""
    file = data / "glue/sst2/train.parquet" if data else None
    if file and file.is_file():
        lines = pq.read_table(file, columns=["sentence"])["sentence"].to_pylist()
    else:
        draw = random.Random(0)
        vocabulary = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5000)]
        lines = [" ".join(draw.choices(vocabulary, k=draw.randint(1, 18))) for _ in range(count)]
    return (lines * (count // len(lines) + 1))[:count]


def mask_lines(lines: list[str], copies: int) -> None:
    """Mask the lines with mtkd and write the corpus to a new directory."""
    uids = pa.array([f"bench/train/{number}" for number in range(len(lines))])
    rows = Rows("bench", "train", uids, (pa.array(lines),), np.full(len(lines), np.nan))
    spec = CorpusSpec(Masking(p=0.1), {"bench": copies}, "sentences", "bench", "scripts/bench_masking.py")
    with tempfile.TemporaryDirectory() as directory:
        write_corpus(spec, {"bench": rows}, Path(directory) / "corpus")


def _with_nlpaug(masker: Any, lines: list[str], copies: int) -> None:
    for line in lines:
        masker.augment(line, n=copies)


def compare(lines: list[str], copies: int, rounds: int, few: int) -> None:
    """Alternate the two libraries and print the ratio of their medians."""
    try:
        import nlpaug.augmenter.word as words
    except ImportError:
        words = None
        click.echo("nlpaug is not installed; only mtkd is measured")
    nlpaug_rates: list[float] = []
    mtkd_rates: list[float] = []
    for number in range(rounds + 1):  # the first round warms up
        rate = len(lines) * copies / seconds(lambda: mask_lines(lines, copies))
        other = 0.0
        if words:
            masker = words.RandomWordAug(action="substitute", target_words=["[MASK]"], aug_p=0.1)
            other = few * copies / seconds(partial(_with_nlpaug, masker, lines[:few], copies))
        if number:
            mtkd_rates.append(rate)
            nlpaug_rates.append(other)
            click.echo(f"round {number}: mtkd {rate:,.0f} copies/s, nlpaug {other:,.0f}")
    click.echo(f"median: mtkd {statistics.median(mtkd_rates):,.0f} copies/s, written to disk")
    if words:
        median = statistics.median(nlpaug_rates)
        ratio = statistics.median(mtkd_rates) / median
        click.echo(f"median: nlpaug {median:,.0f} copies/s, in memory; ratio {ratio:.1f}x")


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Directory with glue/sst2 (default: generated text)."
)
@click.option("--rows", default=100_000, show_default=True, help="Number of sentences.")
@click.option("--few", default=2_000, show_default=True, help="Number of sentences for nlpaug.")
@click.option("--copies", default=10, show_default=True, help="Copies per sentence.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--memory", is_flag=True, help="Only measure the peak memory of one run in this process.")
def main(data: Path | None, rows: int, few: int, copies: int, rounds: int, memory: bool) -> None:
    """Run the comparison, or a single memory measurement with --memory."""
    if memory:
        lines = sentences(data, 10_000)
        mask_lines(lines, max(1, rows // len(lines)))
        peak = status_bytes("VmHWM") / 1e6  # getrusage would include the parent's
        click.echo(f"{rows:>9,} copies: peak {peak:,.0f} MB")
        return
    compare(sentences(data, rows), copies, rounds, few)
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        arguments = ["--memory", "--rows", str(size), *(["--data", str(data)] if data else [])]
        subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
