"""`mtkd augment mask`, `replace` and `run`: corpora of copies of rows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    stack,
    table,
)

if TYPE_CHECKING:
    from augment.augmenter import Augmenter
    from tasks.corpus_reader import CorpusManifest
    from tasks.rows import Rows
    from tasks.task import Task

_source_options = stack(
    data_option,
    click.option("--tasks", "spec", required=True, help="tasks, groups or task files, comma-separated"),
    out_option,
)
_copies_option = click.option(
    "--copies", multiple=True, metavar="[TASK=]N", help="copies of each row [40 for stsb, mrpc, rte; else 10]"
)
_writing_options = stack(
    click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="processes"),
    limit_option,
    overwrite_option,
    report_options,
)
_run_options = stack(
    click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0)),
    click.option("--mask-token", default="[MASK]", show_default=True, help="the teacher's mask token"),
    _writing_options,
)


@click.command()
@_source_options
@click.option("--p", default=0.1, show_default=True, help="chance of a word to be masked")
@_copies_option
@_run_options
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

    After an interruption the same command resumes, and the corpus is byte-identical. With
    `accelerate launch -m mtkd.cli.main augment ...` several processes share the work.
    """
    from augment.corpus_writer import copies_of
    from augment.masking import Masking

    tasks = _trained(spec)
    method = Masking(p=p, seed=seed, mask_token=mask_token)
    numbers = copies_of(tasks, ",".join(copies))
    _write(method, numbers, data, _rows(data, tasks, limit), out, workers, overwrite, json_file)


@click.command()
@_source_options
@click.option("--p-mask", default=0.1, show_default=True, help="chance of a word to be masked")
@click.option(
    "--p-pos", default=0.1, show_default=True, help="chance to become another word of its part of speech"
)
@click.option(
    "--p-ngram", default=0.25, show_default=True, help="chance of a text to be cut to 1 to 5 words in a row"
)
@click.option("--copies", multiple=True, metavar="[TASK=]N", help="copies of each row [20]")
@click.option(
    "--tagger",
    default="auto",
    show_default=True,
    metavar="auto|spacy:MODEL|nltk",
    help="where parts of speech come from; nothing is downloaded",
)
@_run_options
def replace(
    data: str,
    spec: str,
    out: Path,
    p_mask: float,
    p_pos: float,
    p_ngram: float,
    copies: tuple[str, ...],
    tagger: str,
    seed: int,
    mask_token: str,
    workers: int,
    limit: int | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write copies with words masked or replaced, and n-grams cut out (Tang et al. 2019).

    After an interruption the same command resumes, and the corpus is byte-identical. With
    `accelerate launch -m mtkd.cli.main augment ...` several processes share the work.
    """
    from augment.corpus_writer import copies_of
    from augment.replacement import COPIES, Replacement

    tasks = _trained(spec)
    method = Replacement({}, tagger, p_mask, p_pos, p_ngram, seed, mask_token)
    numbers = copies_of(tasks, ",".join([str(COPIES), *copies]))
    _write(method, numbers, data, _rows(data, tasks, limit), out, workers, overwrite, json_file)


@click.command("run")
@click.argument("name")
@_source_options
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="a setting of the augmenter")
@_copies_option
@_writing_options
def run_augmenter(
    name: str,
    data: str,
    spec: str,
    out: Path,
    sets: tuple[str, ...],
    copies: tuple[str, ...],
    workers: int,
    limit: int | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write copies of every training row with the augmenter NAME: mask, replace, or one of a plugin.

    Other packages add augmenters as entry points of the group mtkd.augmenters.
    """
    from augment.corpus_writer import copies_of
    from augment.registry import build_augmenter
    from mtkd.recipes import parse_set

    method = build_augmenter(name, parse_set(sets))
    tasks = _trained(spec)
    numbers = copies_of(tasks, ",".join(copies))
    _write(method, numbers, data, _rows(data, tasks, limit), out, workers, overwrite, json_file)


def _trained(spec: str) -> list[Task]:
    from tasks.registry import resolve

    return [task for task in resolve(spec) if task.train is not None]


def _rows(data: str, tasks: Sequence[Task], limit: int | None) -> dict[str, Rows]:
    from tasks.sources import load_rows, open_data

    source = open_data(data)
    return {task.name: load_rows(source, task, task.train, limit, 0) for task in tasks if task.train}


def _write(
    method: Augmenter,
    copies: Mapping[str, int],
    data: str,
    rows: Mapping[str, Rows],
    out: Path,
    workers: int,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write the corpus and show what it holds."""
    from augment.corpus_writer import CorpusJob, total_copies, write_corpus
    from mtkd.storage.distributed import launched
    from tasks.progress import progress
    from tasks.sources import open_data

    command = shlex.join(["mtkd", *sys.argv[1:]])
    job = CorpusJob(method.prepare(rows), copies, open_data(data).name, __version__, command)
    ranks = launched()
    with progress("copying", total_copies(job, rows), unit="copies", show=ranks.first) as advance:
        written = write_corpus(
            job, rows, out, workers=workers, overwrite=overwrite, advance=advance, ranks=ranks
        )
    if not ranks.first:
        return
    manifest = written.manifest

    def draw() -> None:
        _draw(manifest)
        kept = f" ({written.kept} shards were there already)" if written.kept else ""
        say(f"{manifest.rows:,} copies in {out}{kept}")

    show(manifest.to_json(), json_file, draw)


def _draw(manifest: CorpusManifest) -> None:
    table(
        ("task", "rows", "copies a row", "copies", "words changed", "copies with none changed"),
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
