"""Options that several commands share, and how results are shown."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from mtkd.cli.option_values import NON_NEGATIVE_INT, PATH, POSITIVE_INT
from tasks.common.arguments import MAX_THREADS
from tasks.common.errors import UserError, plain
from tasks.common.files import write_json
from tasks.common.progress import say as say
from tasks.common.progress import set_quiet
from tasks.common.urls import with_urls

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def stack(*options: Wrapper) -> Wrapper:
    """Combine several options into one decorator; --help lists them in this order."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return wrap


THREADS = click.IntRange(1, MAX_THREADS)


def one_or_several(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> str | list[str] | None:
    """The value of a repeatable option: text if it was given once, else a list; None = not given."""
    return list(value) if len(value) > 1 else value[0] if value else None


data_option = click.option(
    "--data",
    multiple=True,
    metavar="pocket|hub|DIR",
    envvar="MTKD_DATA",
    callback=one_or_several,
    help="the source of the rows; if given several times, each split is read from the first source that has "
    "it; not needed for task files with [files]",
)
corpora_option = click.option(
    "--corpus",
    multiple=True,
    metavar="DIR",
    callback=one_or_several,
    help="a corpus written by mtkd augment, whose rows are further training rows; may be given several times",
)
out_option = click.option("--out", required=True, metavar="DIR", type=PATH, help="output directory")
overwrite_option = click.option("--overwrite", is_flag=True, help="replace another run or output in --out")
seed_option = click.option("--seed", default=0, type=NON_NEGATIVE_INT, help="random seed")
limit_option = click.option(
    "--limit",
    type=POSITIVE_INT,
    metavar="N",
    help="at most N training rows per task (a seeded sample)",
)


def _files_of_tasks(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    """Convert TASK=FILE values to a mapping: task -> a file or split, or a list of files."""
    files_by_task: dict[str, list[str]] = {}
    for item in value:
        task, separator, file = item.partition("=")
        if not (task and separator and file):
            named = str(ctx.params.get("tasks") or "TASK").split(",")[0]
            example = f"{Path(named).stem}={item}" if not separator else "sst2=reviews.csv"
            raise UserError(
                f"--unlabelled {item!r} does not name a task"
                if not separator
                else f"--unlabelled {item!r} is not valid",
                expected="TASK=FILE, once for each task or file",
                hint=f"--unlabelled {shlex.quote(example)}",
            )
        files_by_task.setdefault(task, []).append(file)
    return {
        task: files[0] if len(files) == 1 else [Path(f) for f in files]
        for task, files in files_by_task.items()
    }


unlabelled_option = click.option(
    "--unlabelled",
    multiple=True,
    metavar="TASK=FILE",
    callback=_files_of_tasks,
    help="unlabelled text: a file, a pattern such as 'more-*.csv', or a split such as test  "
    "[default: `unlabelled` in the task file or data]",
)
unlabelled_limit_option = click.option(
    "--unlabelled-limit",
    type=NON_NEGATIVE_INT,
    metavar="N",
    help="at most N unlabelled rows per task (a seeded sample); 0 = none",
)
teacher_labels_option = click.option(
    "--teacher-labels",
    multiple=True,
    metavar="TASK=a,b,c",
    help="the task's labels in the order of the checkpoint's outputs, if a transformers checkpoint does not "
    """name them; for labels that contain commas TASK='["a, b", "c"]'""",
)
eval_limit_option = click.option(
    "--eval-limit", type=POSITIVE_INT, metavar="N", help="at most N validation rows per task"
)
quiet_option = click.option(
    "--quiet",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda ctx, param, value: set_quiet(value),
    help="print only results and warnings: no progress bar, no closing message",
)
json_option = click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="write the result as JSON to FILE, or to standard output",
)
report_options = stack(json_option, quiet_option)
device_option = click.option(
    "--device", metavar="cpu|cuda|cuda:N|mps", help="device to run on  [default: a GPU if there is one]"
)


def _options_of_workers(meaning: str) -> Wrapper:
    return stack(
        click.option(
            "--workers",
            type=POSITIVE_INT,
            help=f"{meaning}  [default: 1; with Ray, one per CPU of the cluster, or per GPU to run a model]",
        ),
        click.option(
            "--engine",
            default="processes",
            type=click.Choice(["processes", "ray"]),
            help="where the workers run: processes on this machine, or a Ray cluster",
        ),
        click.option(
            "--address",
            metavar="auto|HOST:PORT",
            help="the Ray cluster; auto: the one on this machine  [default: start one]",
        ),
    )


workers_options = _options_of_workers("number of processes")
teacher_workers_options = _options_of_workers(
    "number of processes that compute the teacher's logits, if these are computed before training"
)


def _options_of_training(lr_help: str) -> Wrapper:
    return stack(
        limit_option,
        eval_limit_option,
        click.option("--epochs", type=POSITIVE_INT, help="number of epochs; same as --set train.epochs=N"),
        click.option("--steps", type=POSITIVE_INT, help="number of steps; same as --set train.steps=N"),
        click.option("--batch", type=POSITIVE_INT, help="rows per step; same as --set train.batch_size=N"),
        click.option("--lr", type=float, help=lr_help),
        click.option("--seed", type=NON_NEGATIVE_INT, help="random seed; same as --set train.seed=N"),
        device_option,
        click.option(
            "--set", "sets", multiple=True, metavar="a.b=v", help="override one setting of the recipe"
        ),
        click.option(
            "--resume",
            is_flag=True,
            help="fail if --out has no run to resume; runs are also resumed without this option",
        ),
        overwrite_option,
        report_options,
    )


train_options = _options_of_training("learning rate; same as --set train.lr=X")
finetune_options = _options_of_training("the only learning rate to try; same as --set learning_rates=[X]")


def train_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the options of a training command to arguments of its function: --set becomes `settings`."""
    from mtkd.recipes import parse_set

    return {name: value for name, value in options.items() if name != "sets"} | {
        "settings": parse_set(options["sets"])
    }


def command_line() -> str:
    """The command line of this process, for manifests."""
    return shlex.join(["mtkd", *sys.argv[1:]])


def show(result: Any, json_file: str | None, draw: Callable[[], None]) -> None:
    """Print a result as a table, or write it as JSON.

    Args:
        json_file: None = only the table; "-" = only JSON, on standard output; else both.
        draw: prints the table.
    """
    if json_file == "-":
        print(json.dumps(with_urls(result), indent=2))
        return
    draw()
    if json_file is not None:
        from mtkd.cli.json_target import require_result_file

        require_result_file(Path(json_file))  # the command itself may have written it
        write_json(Path(json_file), result, alone=True)


def echo(text: str) -> None:
    """Print a line of a result; control characters in it are escaped."""
    print(plain(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table; columns after the first that hold numbers are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if title:  # not as the title of the table, which would wrap it to the width of the columns
        print(plain(title))
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        is_numeric = bool(index) and all(_numeric(row[index]) for row in rows)
        drawn.add_column(
            plain(name), justify="right" if is_numeric else "left", no_wrap=is_numeric, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*map(plain, row))
    # A fixed width: in a narrow terminal, long lines are better than columns that vanish.
    console = Console(highlight=False, markup=False, width=160)
    with console.capture() as captured:
        console.print(drawn)
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    print("\n".join(lines).rstrip("\n") + "\n")  # the table itself ends in a blank line


def _numeric(text: str) -> bool:
    return text in ("", "-") or text.lstrip("+-x").replace(",", "").replace("%", "")[:1].isdigit()


def say_written(count: int, what: str, out: Path, kept: int) -> None:
    """Print the closing line of a command that writes a corpus.

    Args:
        kept: the number of shards that existed already.
    """
    say(f"{count:,} {what} in {out}" + (f" ({kept} shards were there already)" if kept else ""))


@contextlib.contextmanager
def interruptible(out: Path) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a message on how to resume, and exit code 130 or 143."""
    from mtkd.training.interrupts import Interrupted, Terminated

    try:
        yield
    except Interrupted as interrupted:
        say(f"interrupted; a checkpoint is in {out}: the same command resumes from there")
        raise SystemExit(interrupted.exit_code) from None
    except (KeyboardInterrupt, Terminated) as interrupt:
        say(f"interrupted; the same command resumes the run in {out}, or starts it if it has no checkpoint")
        raise SystemExit(143 if isinstance(interrupt, Terminated) else 130) from None


def warn(text: str) -> None:
    """Print a warning in a red panel on standard error."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console(stderr=True).print(Panel(Text(plain(text)), title="WARNING", border_style="bold red"))
