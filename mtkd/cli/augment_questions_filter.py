"""`mtkd augment questions filter`: the questions that a teacher can answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtkd.cli.options import (
    PATH,
    command_line,
    out_option,
    overwrite_option,
    report_options,
    say_written,
    seed_option,
    show,
    table,
    warn,
    workers_options,
)

if TYPE_CHECKING:
    from augment.questions.filtering.filter_corpus import Filtered

_TOLERATED_SHORTFALL = 0.01  # of the share of unanswerable questions; a larger one gives a warning


@click.command("filter")
@click.option(
    "--corpus",
    required=True,
    type=PATH,
    metavar="DIR",
    help="the corpus of generated questions",
)
@click.option(
    "--teacher",
    required=True,
    type=PATH,
    metavar="DIR",
    help="a model that answers questions",
)
@out_option
@click.option(
    "--unanswerable",
    type=float,
    help="share of unanswerable questions in the result  [default: 0.33 if the teacher has learned to give "
    "no answer, else 0]",
)
@click.option("--min-overlap", default=0.5, help="lowest F1 at which two answers agree")
@click.option(
    "--min-confidence", default=0.0, help='an answer must beat "no answer" by more than this, in logits'
)
@click.option(
    "--max-copied", default=0.9, help="drop a question if a larger share of it is copied from the context"
)
@click.option(
    "--round-trip/--no-round-trip",
    default=True,
    help="drop a question if the teacher's answer is not the one that it was generated for",
)
@click.option("--any-form", is_flag=True, help="also keep text that does not look like a question")
@click.option("--labels/--no-labels", default=False, help="also write the teacher's answers")
@seed_option
@click.option("--shard-rows", default=10_000, help="questions examined per output file")
@workers_options
@overwrite_option
@report_options
def filter_questions(out: Path, json_file: str | None, **options: Any) -> None:
    """Keep the questions that a teacher can answer, and add unanswerable ones.

    After an interruption, the same command resumes, and the corpus is byte-identical.
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from mtkd.api import augmentation
    from mtkd.output_files.distributed import join_process_group

    if options["unanswerable"] is None:
        del options["unanswerable"]
    filtered = augmentation.filter_questions(out=out, command=command_line(), **options)
    if join_process_group().is_main:
        show(filtered.tally.to_json(), json_file, lambda: _draw(filtered, out))


def _draw(filtered: Filtered, out: Path) -> None:
    table(("outcome", "questions", "share"), filtered.tally.lines())
    share, requested = filtered.tally.unanswerable, filtered.requested
    if share < requested - _TOLERATED_SHORTFALL:
        warn(f"{share:.1%} of the rows have no answer, not {requested:.1%}: the teacher answers the others")
    say_written(filtered.tally.rows, "questions", out, filtered.kept)
