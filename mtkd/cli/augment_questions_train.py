"""`mtkd augment questions train`: fine-tune a T5 to write questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    command_line,
    data_option,
    eval_limit_option,
    interruptible,
    limit_option,
    out_option,
    overwrite_option,
    report_options,
    say,
    seed_option,
    show,
    table,
)

_FORMAT_HELP = (
    "what the generator reads; context: only the context; answer: the answer, then the context; "
    "sentence: the answer, then the sentence that contains it"
)


@click.command()
@data_option
@click.option("--task", default="squad", help="a span task, or its .toml file")
@click.option(
    "--model",
    required=True,
    metavar="NAME|DIR|scratch",
    help="the T5 to start from; 'scratch' starts from random weights",
)
@out_option
@click.option("--format", default="context", help=_FORMAT_HELP)
@click.option("--epochs", default=3, type=POSITIVE_INT, help="number of epochs")
@click.option("--steps", type=POSITIVE_INT, help="number of steps, instead of --epochs")
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    help="learning rate  [default: 0.03 from scratch, else 3e-4]",
)
@click.option("--batch", default=64, type=POSITIVE_INT, help="questions per step")
@click.option("--max-input", default=512, type=click.IntRange(min=8), help="longest prompt in tokens")
@click.option("--max-output", default=48, type=click.IntRange(min=2), help="longest question in tokens")
@seed_option
@click.option(
    "--precision", default="fp32", type=click.Choice(["fp32", "bf16"]), help="precision of training"
)
@click.option(
    "--vocab-size",
    default=8000,
    type=POSITIVE_INT,
    help="vocabulary size of a T5 that is trained from scratch",
)
@click.option("--d-model", default=256, type=POSITIVE_INT, help="width of a T5 from scratch")
@click.option(
    "--layers",
    default=4,
    type=POSITIVE_INT,
    help="layers of the encoder, and of the decoder, of a T5 from scratch",
)
@click.option("--heads", default=4, type=POSITIVE_INT, help="attention heads of a T5 from scratch")
@click.option("--d-ff", default=1024, type=POSITIVE_INT, help="feed-forward width of a T5 from scratch")
@limit_option
@eval_limit_option
@overwrite_option
@report_options
def train(out: Path, json_file: str | None, **options: Any) -> None:
    """Fine-tune a T5 to write the questions of a span task.

    After an interruption, the same command resumes from its last checkpoint, and ends with the same weights.
    """
    from mtkd.api import augmentation

    with interruptible(out):
        report = augmentation.train_questions(out=out, command=command_line(), **options)

    def draw() -> None:
        scores = report["scores"]
        table(
            ("steps", "last loss", "perplexity", "BLEU", "ROUGE-L", "held-out prompts", "questions"),
            [
                (
                    f"{report['steps']:,}",
                    f"{report['losses'][-1]:.3f}",
                    *(f"{scores[name]:.2f}" for name in ("perplexity", "bleu", "rouge_l")),
                    f"{scores['prompts']:,}",
                    f"{scores['questions']:,}",
                )
            ],
        )
        rows = [(s["context"][:70] + "...", s["asked"], s["written"]) for s in report["samples"]]
        table(("context", "human question", "generated question"), rows, "Examples")
        say(f"the generator is in {out}")

    show(report, json_file, draw)
