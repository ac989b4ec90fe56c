"""`mtkd augment questions generate`: write questions about paragraphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtkd.cli.option_values import NON_NEGATIVE_INT, POSITIVE_INT, BatchSizeType, json_value
from mtkd.cli.options import (
    command_line,
    echo,
    out_option,
    overwrite_option,
    report_options,
    say,
    say_written,
    seed_option,
    show,
    table,
    workers_options,
)

if TYPE_CHECKING:
    from tasks.data.corpus_reader import CorpusManifest

_POSITIVE_FLOAT = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option(
    "--model",
    default="rules",
    metavar="rules|DIR|NAME|URL",
    help="rules of English grammar, a trained T5, or an OpenAI-compatible endpoint (http://HOST:PORT/v1)",
)
@click.option(
    "--text", required=True, metavar="FILE|DIR|hub:NAME[/CONFIG]", help="paragraphs: text, parquet or JSONL"
)
@out_option
@click.option("--task", default="squad", help="the span task that the questions are for")
@click.option("--text-column", default="text", help="column or key of the paragraphs")
@click.option("--title-column", default="title", help="column or key of the paragraphs' titles")
@click.option("--split", default="train", help="split of a hub data set")
@click.option(
    "--words",
    metavar="MIN:MAX",
    help="use paragraphs of these lengths, in words; longer ones are split between sentences",
)
@click.option("--per-paragraph", default=1, type=POSITIVE_INT, help="questions per paragraph")
@click.option("--beams", default=1, type=POSITIVE_INT, help="beam search width")
@click.option("--sample", is_flag=True, help="sample tokens instead of taking the most probable")
@click.option("--top-p", default=0.95, help="nucleus sampling threshold of --sample")
@click.option("--temperature", default=1.0, help="temperature of --sample")
@click.option(
    "--format",
    "--preset",
    "format",
    help="prompts of a T5: context, answer, sentence (see train), lmqg, lmqg-mt5, valhalla, flan or t5-v1_1  "
    "[default: as trained, or by the generator's name on the hub]",
)
@click.option(
    "--max-input", type=click.IntRange(min=8), help="longest prompt in tokens  [default: as trained]"
)
@click.option(
    "--max-output",
    type=click.IntRange(min=2),
    help="longest question in tokens  [default: as trained; 128 for an endpoint]",
)
@click.option(
    "--spacy",
    metavar="PIPELINE",
    help="spaCy pipeline that finds candidate answers; with `rules`, also people and places  "
    "[default: word lists and rules]",
)
@click.option("--backend", default="native", help="what runs a T5: native, or ctranslate2 (int8)")
@click.option(
    "--precision",
    default="fp32",
    type=click.Choice(["fp32", "bf16", "auto"]),
    help="precision of the native backend; auto: bf16 on a device with native bf16 support, else fp32",
)
@click.option(
    "--batch",
    default=32,
    type=BatchSizeType(),
    help="prompts per batch; affects speed and memory only. auto: as many as fit in the memory of the GPU; "
    "32 on a CPU",
)
@workers_options
@click.option("--shard-rows", default=1000, type=POSITIVE_INT, help="questions per output file")
@click.option("--limit", type=POSITIVE_INT, metavar="N", help="at most N paragraphs (a seeded sample)")
@seed_option
@click.option("--endpoint-model", metavar="NAME", help="name of the model at the endpoint")
@click.option(
    "--api-key-env",
    metavar="VARIABLE",
    help="environment variable with an endpoint's API key; '' = send none  [default: OPENAI_API_KEY, if set]",
)
@click.option(
    "--prompt-template",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="file with the prompt for an endpoint; {context} is the paragraph, {answer} the chosen answer",
)
@click.option(
    "--extra-body",
    metavar="JSON",
    callback=json_value,
    help="""additional fields of each request, such as '{"top_k": 20}'; null removes one""",
)
@click.option(
    "--concurrency",
    default=8,
    type=POSITIVE_INT,
    help="maximum number of requests to an endpoint at the same time",
)
@click.option(
    "--requests-per-minute",
    type=_POSITIVE_FLOAT,
    metavar="N",
    help="maximum requests per minute to an endpoint",
)
@click.option(
    "--timeout",
    default=60.0,
    type=_POSITIVE_FLOAT,
    metavar="SECONDS",
    help="seconds to wait for a response of an endpoint",
)
@click.option(
    "--retries", default=5, type=NON_NEGATIVE_INT, help="maximum retries of a request to an endpoint"
)
@click.option(
    "--price-in", type=click.FloatRange(min=0), help="price per million input tokens, for the estimate"
)
@click.option("--price-out", type=click.FloatRange(min=0), help="price per million output tokens")
@click.option("--dry-run", is_flag=True, help="only count paragraphs, and estimate the cost of an endpoint")
@overwrite_option
@report_options
def generate(out: Path, json_file: str | None, dry_run: bool, **options: Any) -> None:
    """Write questions about paragraphs, for a teacher to answer.

    After an interruption, the same command resumes, and the corpus is byte-identical (an endpoint is asked
    only for what is missing).
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from mtkd.api import augmentation
    from mtkd.output_files.distributed import join_process_group

    if dry_run:
        planned = augmentation.estimate_questions(out=out, **options)
        estimate = planned.estimate.to_json() if planned.estimate else None

        def draw_plan() -> None:
            echo(planned.counts.sentence())
            if planned.estimate:
                echo(planned.estimate.sentence())

        show({"paragraphs": planned.counts.to_json(), "estimate": estimate}, json_file, draw_plan)
        return
    written, ready = augmentation.generate_questions(out=out, command=command_line(), **options)
    if not join_process_group().is_main:
        return
    from augment.questions.endpoint.estimate import spent

    manifest = written.manifest

    def draw() -> None:
        _draw_questions(manifest, out)
        say(ready.counts.sentence())
        if manifest.settings["answers"] == "rule":
            _say_unused_pipeline()
        if manifest.counts:
            say(spent(manifest.counts, ready.prices))
        say_written(manifest.rows, "questions", out, written.kept)

    counts = {"paragraphs": ready.counts.to_json()}
    show({**manifest.to_json(), **counts}, json_file, draw)


def _say_unused_pipeline() -> None:
    """Name an installed spaCy pipeline; it is used only on request, so that results do not depend on it."""
    from augment.questions.generation.answer_candidates import installed_pipelines

    for name in installed_pipelines()[:1]:
        say(f"spaCy's {name} is installed; --spacy {name} uses it")


def _draw_questions(manifest: CorpusManifest, out: Path) -> None:
    """Print the counts of paragraphs and questions, and some examples."""
    from augment.questions.generation.prepare_generation import samples, silent_paragraphs

    entry = manifest.tasks[0]
    short = entry.source_rows * entry.copies - entry.rows
    counts = (entry.source_rows, entry.rows, short, silent_paragraphs(out, manifest), len(manifest.shards))
    names = ("task", "paragraphs", "questions", "missing", "paragraphs without any", "shards")
    table(names, [(entry.name, *(f"{count:,}" for count in counts))])
    shown = [(s.source, s.context, s.question) for s in samples(out, manifest)]
    table(("from", "context", "question"), shown, "Examples")
