"""Benchmark replacement (`mtkd augment replace`): tagging time and copies written to disk per second.

    python scripts/bench_replacement.py --data ../shared/data
    python scripts/bench_replacement.py --data ../shared/data --tagger spacy:en_core_web_sm

Without --tagger, the tag of a word is its last letter, so that tagging costs almost nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from measuring import seconds

from augment.corpus_writer import CorpusSpec, write_corpus
from augment.replacement import COPIES, Replacement
from augment.tagged_text import tag_rows
from augment.tagging import open_tagger
from mtkd.output_files.worker_pools import Workers
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS


@dataclass(frozen=True)
class Endings:
    """A tagger that uses the last letter of a word as its tag."""

    name = "endings"

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the last letters of the words."""
        return ([word[-1] for word in words] for words in texts)


@click.command()
@click.option("--data", required=True, help="as for mtkd --data")
@click.option("--task", default="sst2", show_default=True)
@click.option("--tagger", help="as for mtkd augment replace --tagger")
@click.option("--copies", default=COPIES, show_default=True)
@click.option("--workers", default=1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(data: str, task: str, tagger: str | None, copies: int, workers: int, rounds: int) -> None:
    """Tag the texts once, then write the corpus in several rounds."""
    rows = load_rows(open_data(data), TASKS[task], "train")
    chosen = open_tagger(tagger) if tagger else Endings()
    started = time.perf_counter()
    tagged = tag_rows(rows, chosen)
    spent = time.perf_counter() - started
    words = len(tagged.ids)
    click.echo(f"{chosen.name}: {len(tagged.texts):,} texts, {words:,} words in {spent:.1f} s")
    augmenter = Replacement({task: tagged}, chosen.name)
    spec = CorpusSpec(augmenter, {task: copies}, data, "bench", "scripts/bench_replacement.py")
    rates = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary) / "c"
            spent = seconds(partial(write_corpus, spec, {task: rows}, out, workers=Workers(workers)))
        rates.append(len(rows) * copies / spent)
    shown = ", ".join(f"{rate:,.0f}" for rate in sorted(rates))
    click.echo(f"{len(rows) * copies:,} copies: {statistics.median(rates):,.0f} per second ({shown})")


if __name__ == "__main__":
    main()
