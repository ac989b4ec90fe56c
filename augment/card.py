"""The card of a corpus: its README.md."""

from __future__ import annotations

from tasks.corpus import MANIFEST, CorpusManifest

_CARD = """\
# {rows} unlabelled copies of {data} ({method})

Made by mtkd {version}:

    {command}

{about}

Settings: {settings}.

| task | source rows | copies a row | copies | words replaced | copies with nothing replaced |
| --- | --- | --- | --- | --- | --- |
{tasks}

**There are no labels, on purpose.** A copy may no longer mean what its source row meant, so the source's
label is not carried over: a teacher's answers are the target when a student is distilled on these rows.

## Files

`data/<task>-<number>.parquet` hold the copies, in the order of the source rows, a row's copies together.
`{manifest}` says how they were made, with a digest of the source rows and the SHA-256 of every file.

| column | type | what |
| --- | --- | --- |
| task | string (dictionary) | the task |
| parent | string | uid of the source row, "task/split/number" |
| copy | int32 | number of the copy, from 1 |
| text | string | the first text |
| text_pair | string | the second text; null in tasks of one text |
| label | float64 | always null |
| method | string (dictionary) | "{method}" |

## Loading

    import datasets
    copies = datasets.load_dataset("parquet", data_files="data/{first}-*.parquet", split="train")

    import pandas
    copies = pandas.read_parquet("data/{file}")

    mtkd distill RECIPE --corpus DIR ...
"""


def card(manifest: CorpusManifest, about: str) -> str:
    """The text of README.md for a finished corpus; `about` is the method's own account of itself."""
    tasks = "\n".join(
        f"| {task.name} | {task.source_rows} | {task.copies} | {task.rows} "
        f"| {task.words_changed:.2%} | {task.unchanged:.2%} |"
        for task in manifest.tasks
    )
    return _CARD.format(
        rows=manifest.rows,
        data=manifest.data,
        method=manifest.method,
        version=manifest.version,
        command=manifest.command,
        about=about,
        settings=", ".join(f"{name} = {value}" for name, value in manifest.settings.items()),
        tasks=tasks,
        manifest=MANIFEST,
        first=manifest.tasks[0].name,
        file=manifest.shards[0].file.removeprefix("data/"),
    )
