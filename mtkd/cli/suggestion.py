"""`mtkd suggest`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import mtkd
from mtkd.cli.options import (
    THREADS,
    data_option,
    device_option,
    echo,
    report_options,
    show,
    table,
    unlabelled_option,
    warn,
)
from tasks.common.arguments import MAX_BATCH, MAX_ROUNDS, MAX_TOKENS

if TYPE_CHECKING:
    from mtkd.jobs.suggest import SuggestedStudent


@click.command()
@click.option(
    "--teacher",
    default="minilm",
    metavar="DIR|NAME",
    help="a run, a fine-tuned transformers checkpoint, or a pretrained encoder",
)
@click.option("--target-speedup", type=float, metavar="X", help="minimum speed, relative to the teacher")
@click.option("--max-mb", type=float, metavar="MB", help="maximum size of the weights")
@click.option("--int8", is_flag=True, help="--max-mb limits the size of an int8 export, instead of fp32")
@data_option
@click.option("--tasks", help="task names, groups of tasks or task files  [default: those of the teacher]")
@unlabelled_option
@click.option("--seq-len", default=128, type=click.IntRange(4, MAX_TOKENS), help="tokens per row")
@click.option("--batch", default=16, type=click.IntRange(1, MAX_BATCH), help="rows per forward pass")
@click.option("--rounds", default=5, type=click.IntRange(1, MAX_ROUNDS), help="timed batches per model")
@click.option("--threads", type=THREADS, help="number of CPU threads  [default: torch's default]")
@device_option
@report_options
def suggest(json_file: str | None, **options: Any) -> None:
    """Time students of several shapes against the teacher, and print those that reach the targets.

    Nothing is trained: students with random weights are timed, in about a minute. With training rows
    (--data, or task files with [files]), students whose vocabulary is pruned to the tokens of these rows
    are also timed. The exit code is also 0 if no student reaches the targets; the closest one is then
    printed.
    """
    from mtkd.jobs.suggest import NOTE

    suggested = mtkd.suggest_students(**options)

    targets = {name: options[name] for name in ("target_speedup", "max_mb", "int8")}

    def draw() -> None:
        title = (
            f"{suggested.teacher}: {suggested.teacher_rows_per_second:,.1f} rows/s, "
            f"{suggested.teacher_megabytes:.1f} MB "
            f"({options['batch']} rows of {options['seq_len']} tokens, {options['rounds']} repetitions; "
            "the models alone, without tokenising)"
        )
        rows = [
            (
                student.name,
                f"{student.speed:.1f}x ({student.slowest:.1f}-{student.fastest:.1f})",
                f"{student.rows_per_second:,.0f}",
                f"{student.megabytes:.1f}",
                f"{student.megabytes / 4:.1f}",
                "yes" if student.within_targets else f"no: {_missed(student, **targets)}",
            )
            for student in suggested.students
        ]
        headings = ("student", "speed (min-max)", "rows/s", "MB in fp32", "about, in int8", "reaches targets")
        table(headings, rows, title)
        echo(NOTE)
        chosen = [
            student
            for student in suggested.students
            if student.within_targets or student.name == suggested.nearest
        ]
        for line in [suggested.first, *(f"{student.command}    # {student.name}" for student in chosen)]:
            if line:
                echo(f"\n    {line}" if line == suggested.first else f"    {line}")
        words = ("data", "tasks")
        unknown = [word for word in words if f" --{word} {word.upper()} " in suggested.students[0].command]
        if unknown:
            echo(
                f"Replace {' and '.join(map(str.upper, unknown))}, or pass "
                f"{' and '.join(f'--{word}' for word in unknown)} to `mtkd suggest`."
            )

    show(suggested.to_json(), json_file, draw)
    if suggested.nearest:
        warn(f"no student reaches the targets; {suggested.nearest} comes nearest")


def _missed(student: SuggestedStudent, target_speedup: float | None, max_mb: float | None, int8: bool) -> str:
    """The targets that a student misses, in words."""
    slow = target_speedup is not None and student.speed < target_speedup
    large = max_mb is not None and student.megabytes / (4 if int8 else 1) > max_mb
    too_large = f"too large in {'int8' if int8 else 'fp32'}"
    return " and ".join([*(["too slow"] if slow else []), *([too_large] if large else [])])
