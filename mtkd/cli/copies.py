"""`mtkd augment mask`: corpora of copies of rows."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from mtkd import __version__
from mtkd.cli.options import (
    data_option,
    limit_option,
    out_option,
    overwrite_option,
    report_options,
    say,
    show,
    table,
)


@click.command()
@data_option
@click.option("--tasks", "spec", required=True, help="tasks, groups or task files, by commas")
@out_option
@click.option("--p", default=0.1, show_default=True, help="chance of a word to be masked")
@click.option(
    "--copies", multiple=True, metavar="[TASK=]N", help="copies a row [40 for stsb, mrpc, rte; else 10]"
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--mask-token", default="[MASK]", show_default=True, help="the teacher's mask token")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="processes")
@limit_option
@overwrite_option
@report_options
def mask(
    data: str,
    spec: str,
    out: Path,
    p: float,
    copies: tuple[str, ...],
    seed: int,
    mask_token: str,
    workers: int,
    limit: int | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write masked copies of every training row (MKD, after Tang et al.).

    Started again after an interruption it goes on where it was; the corpus is the same bytes.
    """
    from augment.corpus import CorpusJob, copies_of, run, total_copies
    from augment.masking import Masking
    from tasks.progress import progress
    from tasks.registry import resolve
    from tasks.sources import load_rows, open_data

    tasks = [task for task in resolve(spec) if task.train is not None]
    method = Masking(p=p, seed=seed, mask_token=mask_token)
    numbers = copies_of(tasks, ",".join(copies))
    source = open_data(data)
    rows = {task.name: load_rows(source, task, task.train, limit, 0) for task in tasks if task.train}
    command = shlex.join(["mtkd", *sys.argv[1:]])
    job = CorpusJob(method, numbers, source.name, __version__, command)
    with progress("masking", total_copies(job, rows), unit="copies") as advance:
        written = run(job, rows, out, workers=workers, overwrite=overwrite, advance=advance)
    manifest = written.manifest

    def draw() -> None:
        table(
            ("task", "rows", "copies a row", "copies", "words masked", "copies with none masked"),
            [
                (
                    t.name,
                    f"{t.source_rows:,}",
                    str(t.copies),
                    f"{t.rows:,}",
                    f"{t.words_changed:.1%}",
                    f"{t.unchanged:.1%}",
                )
                for t in manifest.tasks
            ],
        )
        kept = f" ({written.kept} shards were there already)" if written.kept else ""
        say(f"{manifest.rows:,} copies in {out}{kept}")

    show(manifest.to_json(), json_file, draw)
