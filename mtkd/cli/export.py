"""`mtkd export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import mtkd
from mtkd.cli.measure import model_option
from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import PATH, report_options, say, show, table
from mtkd.cli.unused_options import refuse_options


@click.command()
@model_option
@click.option("--out", required=True, type=PATH, metavar="DIR", help="the output directory")
@click.option("--tasks", help="tasks of the model  [default: all that the model knows]")
@click.option(
    "--format",
    type=click.Choice(("onnx", "transformers")),
    default="onnx",
    help="transformers: a directory for from_pretrained, with one task; for models with BERT's pooling layer",
)
@click.option(
    "--int8", is_flag=True, help="int8 weights: about a quarter of the size, and faster; needs labelled rows"
)
@click.option(
    "--max-drop",
    default=0.5,
    type=click.FloatRange(0, 100),
    metavar="POINTS",
    help="reject an int8 export if a task's score drops significantly by more than this",
)
@click.option(
    "--reduce-range/--full-range",
    default=None,
    help="7 or 8 bits for int8 weights: 7 for processors without VNNI  [default: what this machine needs]",
)
@click.option(
    "--data", metavar="pocket|hub|DIR", help="labelled rows on which both the model and the export are scored"
)
@click.option("--limit", type=POSITIVE_INT, metavar="N", help="at most N rows per split of --data")
@click.option("--overwrite", is_flag=True, help="replace another export in --out")
@report_options
def export(model: Path, json_file: str | None, **options: Any) -> None:
    """Write a model as ONNX graphs, which run without torch, or as a transformers checkpoint.

    The logits of the fp32 graphs are compared with those of the model at several lengths and batch sizes.
    Nothing is written if they differ by more than 0.0001 (of the largest logit, if that is above 1). With
    --int8, nothing is written if a task's score falls by more than --max-drop points even if the heads and
    last layers stay in fp32.

    `mtkd evaluate`, `predict` and `bench inference` take the directory as --model; `mtkd.runtime.OnnxModel`
    runs it in Python without torch.
    """
    if not options["int8"]:
        refuse_options(("max_drop", "reduce_range"), "without --int8", hint="add --int8")
    result = mtkd.export(model, **options)

    def draw() -> None:
        if result.scores:
            columns = ("task", "export", "model", "difference", "95% interval", "")
            rows = [(name, *difference.columns()) for name, difference in result.scores.items()]
            table(columns, rows, "The export compared with the model, in points")
        fp32_parts = f" but for {' and '.join(result.kept)}" if result.kept else ""
        int8 = f", int8{fp32_parts}" if result.int8 else ""
        say(
            f"exported {', '.join(result.tasks)} to {result.path}: {result.bytes / 1e6:.1f} MB"
            f"{int8}; its logits {'in fp32 ' * result.int8}differ from the model's by at most "
            f"{result.difference:.1g}"
        )

    show(result.to_json(), json_file, draw)
