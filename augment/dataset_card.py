"""The dataset card of a corpus: its README.md."""

from __future__ import annotations

from collections.abc import Callable

from tasks.data.corpus_reader import MANIFEST, CorpusManifest, CorpusTask

_COPIES = """\
# {rows} unlabelled copies of {data} ({method})

Made by mtkd {version}:

    {command}

{about}

Settings: {settings}.

| task | source rows | copies per row | copies | words changed | unchanged copies |
| --- | --- | --- | --- | --- | --- |
{tasks}

**The copies are deliberately unlabelled.** A copy may differ in meaning from its source row, so it does not
inherit the label. A student that is distilled on these rows learns from the teacher's predictions.

## Files

`data/<task>-<number>.parquet` contain the copies in the order of the source rows, with each row's copies
together. `{manifest}` records how they were made, a digest of the source rows and the SHA-256 of every file.

| column | type | description |
| --- | --- | --- |
| task | string (dictionary) | the task |
| parent | string | uid of the source row, "task/split/number" |
| copy | int32 | number of the copy, from 1 |
| text | string | the first text |
| text_pair | string | the second text; null for single-text tasks |
| label | float64 | always null |
| method | string (dictionary) | "{method}" |

## Loading

    import datasets
    copies = datasets.load_dataset("parquet", data_files="data/{first}-*.parquet", split="train")

    import pandas
    copies = pandas.read_parquet("data/{file}")

    mtkd distill RECIPE --corpus DIR ...
"""

_QUESTIONS = """\
# {rows} questions about {data}

Made by mtkd {version}:

    {command}

{about}

Settings: {settings}.

| task | paragraphs | maximum questions per paragraph | questions |
| --- | --- | --- | --- |
{tasks}

**Training does not use the answers of generated questions.** A student that is distilled on these rows learns
from the teacher's predictions. Not every question can be answered from its context.

## Files

`data/<task>-<number>.parquet` contain the questions in the order of the paragraphs, with each paragraph's
questions together. `{manifest}` records how they were made, a digest of the paragraphs and the SHA-256 of
every file.

| column | type | description |
| --- | --- | --- |
| task | string (dictionary) | the task |
| parent | string | the paragraph's file and its number in that file |
| copy | int32 | number of the question, from 1 |
| text | string | the question |
| text_pair | string | its context, the paragraph |
| label | float64 | always null |
| method | string (dictionary) | "{method}" |
| source | string | the paragraph's title, or the name of its file |
| answer | string | where the answer is known, as for questions by rules; else null |
| answer_start | int32 | where it begins in the paragraph, in characters; else null |
| asked_for | string | the answer that the question was generated for; null = none was chosen |

## Loading

    import datasets
    questions = datasets.load_dataset("parquet", data_files="data/{first}-*.parquet", split="train")
"""


def dataset_card(manifest: CorpusManifest, about: str) -> str:
    """The text of README.md for a finished corpus; `about` describes the method."""
    template, row = _CARDS[manifest.kind]
    return hub_metadata(manifest) + template.format(
        rows=manifest.rows,
        data=manifest.data,
        method=manifest.method,
        version=manifest.version,
        command=manifest.command,
        about=about,
        settings=", ".join(f"{name} = {value}" for name, value in manifest.settings.items()),
        tasks="\n".join(row(task) for task in manifest.tasks),
        manifest=MANIFEST,
        first=manifest.tasks[0].name,
        file=manifest.shards[0].file.removeprefix("data/"),
    )


def hub_metadata(manifest: CorpusManifest) -> str:
    """The first lines of README.md, by which the Hugging Face hub finds the rows of each task."""
    from huggingface_hub import DatasetCardData

    configs = [
        {"config_name": task.name, "data_files": f"data/{task.name}-*.parquet"} for task in manifest.tasks
    ]
    data = DatasetCardData(tags=["mtkd", "knowledge-distillation"], configs=configs)
    return f"---\n{data.to_yaml()}\n---\n\n"


def _copies_row(task: CorpusTask) -> str:
    changed = f"{task.words_changed:.2%} | {task.unchanged:.2%}"
    return f"| {task.name} | {task.source_rows} | {task.copies} | {task.rows} | {changed} |"


def _questions_row(task: CorpusTask) -> str:
    return f"| {task.name} | {task.source_rows} | {task.copies} | {task.rows} |"


_CARDS: dict[str, tuple[str, Callable[[CorpusTask], str]]] = {
    "copies": (_COPIES, _copies_row),
    "questions": (_QUESTIONS, _questions_row),
}
