"""`mtkd store plan`, `mtkd store build` and `mtkd store info`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

import mtkd
from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    PATH,
    command_line,
    corpora_option,
    echo,
    limit_option,
    overwrite_option,
    report_options,
    say,
    show,
    stack,
    table,
    unlabelled_limit_option,
    unlabelled_option,
    workers_options,
)
from mtkd.cli.unused_options import refuse_other_options
from mtkd.output_files.worker_pools import Engine, Workers
from tasks.common.errors import UserError, counted, warn_caller
from tasks.common.text_format import duration_text, size_text

# The parameters that apply to --repair.
_REPAIR_OPTIONS = ("repair", "out", "workers", "engine", "address", "json_file", "quiet")


@click.group()
def store() -> None:
    """Run the teacher once, keep its outputs on disk, and train any number of students without it."""


contents_options = stack(
    click.option("--recipe", metavar="R", help="the recipe that the store is for (`mtkd recipes`)"),
    click.option(
        "--data",
        metavar="pocket|hub|DIR",
        help="the source of the rows; not needed for task files with [files]",
        envvar="MTKD_DATA",
    ),
    click.option("--tasks", metavar="T", help="tasks, groups of tasks or task files, comma-separated"),
    click.option("--teacher", metavar="DIR", help="a run of mtkd refine, or a pretrained encoder"),
    corpora_option,
    limit_option,
    unlabelled_option,
    unlabelled_limit_option,
    click.option("--set", "sets", multiple=True, metavar="a.b=v", help="override one setting of the recipe"),
    click.option(
        "--budget",
        metavar="SIZE",
        help="choose depth, tokens and width of the hidden states to fit this size (such as 2GB)",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["fp32", "fp16", "bf16", "int8"]),
        default="fp16",
        help="data type of vectors on disk",
    ),
    click.option(
        "--precision",
        type=click.Choice(["fp32", "bf16"]),
        default="fp32",
        help="precision in which the teacher runs",
    ),
    click.option("--batch", type=POSITIVE_INT, default=32, help="rows per forward pass of the teacher"),
)


@store.command()
@contents_options
@click.option(
    "--out", type=PATH, default=Path(), metavar="DIR", help="check the free disk space of this directory"
)
@report_options
def plan(out: Path, json_file: str | None, **options: Any) -> None:
    """Estimate the size of a store and the time to build it; nothing is written."""
    planned = mtkd.plan_store(**_arguments(options), out=out)
    prepared = planned.prepared
    result = {
        "rows": planned.rows,
        "tokens": planned.tokens,
        "bytes": prepared.sizes,
        "total_bytes": prepared.bytes,
        "free_bytes": planned.free,
        "teacher_seconds": planned.seconds,
        "ahsk": planned.ahsk,
        "chosen": prepared.chosen,
    }

    def draw() -> None:
        total = prepared.bytes
        rows = [(kind, size_text(n), f"{n / total:.1%}") for kind, n in prepared.sizes.items()]
        table(("knowledge", "size", "share"), [*rows, ("total", size_text(total), "100.0%")])
        _say_chosen(prepared)
        echo(
            f"{counted(planned.rows, 'row')}, {planned.tokens:,} tokens; "
            f"teacher about {duration_text(planned.seconds)}"
        )
        if planned.ahsk:
            ahsk, full = planned.ahsk
            share = f"{ahsk / full:.2%}"
            echo(f"hidden states: {ahsk:g} of {full:,} vectors of a full-length row ({share})")
        enough = "" if total <= planned.free else ": NOT ENOUGH"
        echo(f"free disk {size_text(planned.free)}{enough}")

    show(result, json_file, draw)


@store.command()
@contents_options
@click.option("--out", required=True, type=PATH, metavar="DIR", help="output directory")
@click.option("--repair", is_flag=True, help="rebuild only the damaged shards of the store in --out")
@workers_options
@overwrite_option
@report_options
def build(
    out: Path,
    repair: bool,
    workers: int | None,
    engine: Engine,
    address: str | None,
    overwrite: bool,
    json_file: str | None,
    **options: Any,
) -> None:
    """Run the teacher on all rows, and store the outputs that the recipe needs.

    After an interruption, the same command resumes, and the output is byte-identical.
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from accelerate import PartialState

    from mtkd.api.stores import STORE_INPUTS, store_request
    from mtkd.jobs.knowledge_store.build_store import build_store, repair_store
    from mtkd.output_files.remote_paths import remote_paths

    processes = Workers(workers, engine, address)
    if repair:
        refuse_other_options(
            _REPAIR_OPTIONS,
            "with --repair, which takes everything from the store itself",
            hint=f"mtkd store build --repair --out {out}",
        )
        manifest, files = remote_paths(out="out")(repair_store)(out, processes)
        if PartialState().is_main_process:
            say(_rebuilt(files, {shard.file for shard in manifest.shards}))
            show({"repaired": files}, json_file, lambda: echo("\n".join(files) or "nothing to repair"))
        return

    @remote_paths(*STORE_INPUTS, out="out")
    def run(out: Path, **options: Any) -> Any:
        return build_store(
            store_request(**options),
            out,
            command_line(),
            workers=processes,
            overwrite=overwrite,
            warn=warn_caller,
        )

    manifest, prepared, n_built = run(out, **_arguments(options))
    if not PartialState().is_main_process:
        return
    show(_summary(manifest), json_file, lambda: _draw(manifest))
    _say_chosen(prepared)
    n_found = len(manifest.shards) - n_built
    say(
        f"{counted(n_built, 'shard')} built"
        + (f", {n_found} were there already" if n_found else "")
        + f": {out}"
    )
    chosen_settings = "".join(f" --set {key}={value}" for key, value in prepared.chosen.items())
    data = f" --data {prepared.request.data}" if prepared.request.data else ""
    say(
        f"next: mtkd distill {prepared.request.recipe} --store {out}{data} "
        f"--tasks {prepared.request.tasks}{chosen_settings} --out DIR"
    )


@store.command()
@click.argument("directory", type=PATH, metavar="DIR")
@report_options
def info(directory: Path, json_file: str | None) -> None:
    """Show what a store holds: its teacher, its rows, its size and the command that built it."""
    manifest = mtkd.store_info(directory)

    def draw() -> None:
        _draw(manifest)
        echo(f"built by: {manifest.command}")

    show(_summary(manifest), json_file, draw)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `mtkd.plan_store` and `mtkd.build_store`."""
    from mtkd.recipes import parse_set

    for name in ("recipe", "tasks", "teacher"):
        if not options[name]:
            raise UserError(f"a store needs --{name}", hint=f"add --{name}")
    arguments = {name: value for name, value in options.items() if name != "sets"}
    return arguments | {"settings": parse_set(options["sets"])}


def _say_chosen(prepared: Any) -> None:
    """Print the settings that were chosen to fit the budget, if there is one."""
    if prepared.chosen:
        settings = " ".join(f"--set {key}={value}" for key, value in prepared.chosen.items())
        echo(f"chosen for the budget: {settings}")


def _summary(manifest: Any) -> dict[str, Any]:
    return {
        "teacher": vars(manifest.teacher),
        "contents": manifest.contents.to_json(),
        "corpus": manifest.corpus,
        "tasks": [vars(task) for task in manifest.tasks],
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "command": manifest.command,
        "version": manifest.version,
    }


def _rebuilt(files: Sequence[str], shards: Collection[str]) -> str:
    """How many shards and other files a repair has rebuilt, such as "rebuilt 1 shard and 2 other files".

    Args:
        shards: all shards of the store.
    """
    n_shards = sum(file in shards for file in files)
    n_others = len(files) - n_shards
    parts = [counted(n_shards, "damaged shard") + f" of {len(shards):,}"] if n_shards or not files else []
    if n_others:
        parts.append(counted(n_others, "other damaged file" if n_shards else "damaged file"))
    return f"rebuilt {' and '.join(parts)}"


def _draw(manifest: Any) -> None:
    rows = []
    for task in manifest.tasks:
        shards = manifest.shards_of(task.name)
        size = size_text(sum(shard.bytes for shard in shards))
        rows.append((task.name, f"{task.rows:,}", str(len(shards)), size, task.digest[:12]))
    table(("task", "rows", "shards", "size", "digest of the rows"), rows)
    contents, teacher = manifest.contents, manifest.teacher
    for line in contents.describe():
        echo(line)
    digest = f"digest {teacher.digest[:12]}" if teacher.digest else "an encoder from the hub"
    echo(f"at most {contents.max_length} tokens per row; tokeniser digest {teacher.tokeniser[:12]}")
    echo(f"teacher {teacher.name} ({digest}), run in {teacher.precision}")
    if manifest.corpus:
        echo(f"with the rows of a corpus or of several (digest {manifest.corpus[:12]})")
