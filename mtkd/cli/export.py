"""`mtkd export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import mtkd
from mtkd.cli.measure import model_option
from mtkd.cli.options import report_options, say, show, table


@click.command()
@model_option
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="the output directory"
)
@click.option("--tasks", help="tasks of the model  [default: all that the model knows]")
@click.option(
    "--data", metavar="pocket|hub|DIR", help="labelled rows on which the model and the export are scored, too"
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="at most N rows per split of --data")
@click.option("--overwrite", is_flag=True, help="replace another export in --out")
@report_options
def export(model: Path, json_file: str | None, **given: Any) -> None:
    """Write a model as ONNX graphs, which run without torch.

    The logits of the export are compared with those of the model at several lengths and batch sizes.
    Nothing is written if they differ by more than 0.0001. `mtkd evaluate`, `predict` and `bench inference`
    take the directory as --model; `mtkd.runtime.OnnxModel` runs it in Python without torch.
    """
    found = mtkd.export(model, **given)

    def draw() -> None:
        if found.scores:
            rows = [(name, f"{s['model']:.3f}", f"{s['export']:.3f}") for name, s in found.scores.items()]
            table(("task", "model", "export"), rows)
        say(
            f"exported {', '.join(found.tasks)} to {found.path}: {found.bytes / 1e6:.1f} MB; its logits "
            f"differ from the model's by at most {found.difference:.1g}"
        )

    show(found.to_json(), json_file, draw)
