"""Replacement (`augment replace`) written to disk: copies a second, and texts tagged a second.

    python scripts/bench_replacement.py --data ../shared/data
    python scripts/bench_replacement.py --data ../shared/data --tagger spacy:en_core_web_sm

Without --tagger a word's tag is its last letter, which costs nothing: the numbers are the method's own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from augment.corpus_writer import CorpusJob, write_corpus
from augment.replacement import COPIES, Replacement
from augment.tagged_text import tag_rows
from augment.tagging import open_tagger
from tasks.glue import TASKS
from tasks.sources import load_rows, open_data


@dataclass(frozen=True)
class Endings:
    """A word's tag is its last letter."""

    name = "endings"

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """The last letters."""
        return ([word[-1] for word in words] for words in texts)


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@click.command()
@click.option("--data", required=True, help="as mtkd's --data")
@click.option("--task", default="sst2", show_default=True)
@click.option("--tagger", help="as mtkd augment replace's --tagger")
@click.option("--copies", default=COPIES, show_default=True)
@click.option("--workers", default=1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(data: str, task: str, tagger: str | None, copies: int, workers: int, rounds: int) -> None:
    """Tag once, then write the corpus in rounds."""
    rows = load_rows(open_data(data), TASKS[task], "train")
    chosen = open_tagger(tagger) if tagger else Endings()
    started = time.perf_counter()
    tagged = tag_rows(rows, chosen)
    spent = time.perf_counter() - started
    words = len(tagged.ids)
    click.echo(f"{chosen.name}: {len(tagged.texts):,} texts, {words:,} words in {spent:.1f} s")
    method = Replacement({task: tagged}, chosen.name)
    job = CorpusJob(method, {task: copies}, data, "bench", "scripts/bench_replacement.py")
    rates = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            spent = seconds(
                lambda place=place: write_corpus(job, {task: rows}, Path(place) / "c", workers=workers)
            )
        rates.append(len(rows) * copies / spent)
    shown = ", ".join(f"{rate:,.0f}" for rate in sorted(rates))
    click.echo(f"{len(rows) * copies:,} copies: {statistics.median(rates):,.0f} a second ({shown})")


if __name__ == "__main__":
    main()
