"""`mtkd augment mask`, `replace`, `contextual` and `run`: corpora of copies of rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    command_line,
    data_option,
    device_option,
    limit_option,
    out_option,
    overwrite_option,
    report_options,
    say_written,
    seed_option,
    show,
    stack,
    table,
    unlabelled_limit_option,
    unlabelled_option,
    workers_options,
)
from tasks.common.errors import UserError

if TYPE_CHECKING:
    from augment.corpus_writer import WrittenCorpus
    from tasks.data.corpus_reader import CorpusManifest

_LONGEST_TOKEN = 100  # characters
_source_options = stack(
    data_option,
    click.option("--tasks", required=True, help="tasks, groups of tasks or task files, comma-separated"),
    out_option,
)
_copies_option = click.option(
    "--copies",
    multiple=True,
    metavar="[TASK=]N",
    help="copies of each row  [default: 40 for stsb, mrpc and rte, else 10]",
)
_copies_20_option = click.option(
    "--copies", multiple=True, metavar="[TASK=]N", help="copies of each row  [default: 20]"
)
_writing_options = stack(
    workers_options,
    limit_option,
    unlabelled_option,
    unlabelled_limit_option,
    overwrite_option,
    report_options,
)


def _check_token(context: click.Context, param: click.Parameter, value: str) -> str:
    """Raise UserError for a mask token so long that the copies would be huge."""
    if len(value) > _LONGEST_TOKEN:
        expected = f"up to {_LONGEST_TOKEN} characters"
        raise UserError(f"{param.opts[0]} has {len(value):,} characters", expected=expected)
    return value


_run_options = stack(
    seed_option,
    click.option("--mask-token", default="[MASK]", callback=_check_token, help="the teacher's mask token"),
    _writing_options,
)


@click.command()
@_source_options
@click.option("--p", default=0.1, help="probability that a word is masked")
@_copies_option
@_run_options
def mask(out: Path, copies: tuple[str, ...], json_file: str | None, **options: Any) -> None:
    """Write masked copies of training rows and of unlabelled rows (MKD, after Tang et al.).

    After an interruption, the same command resumes, and the corpus is byte-identical.
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from mtkd.api import augmentation

    command = command_line()
    written = augmentation.mask(out=out, copies=",".join(copies), command=command, **options)
    _show(written, out, json_file)


@click.command()
@_source_options
@click.option("--p-mask", default=0.1, help="probability that a word is masked")
@click.option(
    "--p-pos", default=0.1, help="probability that a word is replaced by another of its part of speech"
)
@click.option("--p-ngram", default=0.25, help="probability that a text is cut to 1 to 5 consecutive words")
@_copies_20_option
@click.option(
    "--tagger",
    default="auto",
    metavar="auto|spacy:MODEL|nltk|none",
    help="the part-of-speech tagger (nothing is downloaded); none: any word can replace any other",
)
@_run_options
def replace(out: Path, copies: tuple[str, ...], json_file: str | None, **options: Any) -> None:
    """Write copies with words masked or replaced, and n-grams cut out (Tang et al. 2019).

    After an interruption, the same command resumes, and the corpus is byte-identical.
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from mtkd.api import augmentation

    command = command_line()
    written = augmentation.replace(out=out, copies=",".join(copies), command=command, **options)
    _show(written, out, json_file)


@click.command()
@_source_options
@click.option(
    "--model", required=True, metavar="NAME|DIR", help="a masked language model, such as bert-base-uncased"
)
@click.option(
    "--vectors",
    metavar="FILE",
    help="text file of word vectors (GloVe, word2vec), to replace words that consist of several tokens  "
    "[default: the model's input embeddings of whole words]",
)
@click.option("--p", default=0.4, help="probability that a word is replaced")
@click.option(
    "--candidates",
    default=15,
    type=POSITIVE_INT,
    help="number of words from which a replacement is drawn",
)
@_copies_20_option
@seed_option
@device_option
@_writing_options
def contextual(out: Path, copies: tuple[str, ...], json_file: str | None, **options: Any) -> None:
    """Write copies with words replaced by those that a masked language model suggests (TinyBERT).

    After an interruption, the same command resumes.
    Under torchrun or `accelerate launch`, the work is also sharded across processes.
    """
    from mtkd.api import augmentation

    command = command_line()
    written = augmentation.contextual(out=out, copies=",".join(copies), command=command, **options)
    _show(written, out, json_file)


@click.command("run")
@click.argument("name")
@_source_options
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="a setting of the augmenter")
@_copies_option
@_writing_options
def run_augmenter(
    name: str,
    out: Path,
    sets: tuple[str, ...],
    copies: tuple[str, ...],
    json_file: str | None,
    **options: Any,
) -> None:
    """Write copies of rows with the augmenter NAME, such as mask, or one of a plugin.

    Other packages add augmenters as entry points of the group mtkd.augmenters.
    """
    from mtkd.api import augmentation
    from mtkd.recipes import parse_set

    command, settings = command_line(), parse_set(sets)
    written = augmentation.run(
        name, out=out, settings=settings, copies=",".join(copies), command=command, **options
    )
    _show(written, out, json_file)


def _show(written: WrittenCorpus, out: Path, json_file: str | None) -> None:
    """Print a table of the corpus and the closing line, or JSON; only in the process with rank 0."""
    from mtkd.output_files.distributed import join_process_group

    if not join_process_group().is_main:
        return
    manifest = written.manifest

    def draw() -> None:
        _draw_tasks(manifest)
        say_written(manifest.rows, "copies", out, written.kept)

    show(manifest.to_json(), json_file, draw)


def _draw_tasks(manifest: CorpusManifest) -> None:
    table(
        ("task", "rows", "copies per row", "copies", "words changed", "copies with none changed"),
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
