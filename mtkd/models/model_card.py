"""The model card of a saved or exported model: its README.md, with metadata for the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.common.errors import shorten
from tasks.common.hub_loading import DEFAULT_ENCODER, is_hub_name
from tasks.common.text_format import markdown_cell, score_text
from tasks.common.urls import as_url
from tasks.task import Task

if TYPE_CHECKING:
    from mtkd.models.saved_model import ModelInfo

_ORIGIN = {DEFAULT_ENCODER: "sentence-transformers/all-MiniLM-L6-v2"}
_TYPES = {
    "classify": "text-classification",
    "multilabel": "text-classification",
    "regress": "sentence-similarity",
    "rank": "text-ranking",
    "span": "question-answering",
}
_TEXT = """\
# {title}

{description}

| task | input | output | validation scores{of_scores}, in percent |
| --- | --- | --- | --- |
{tasks}
{rounded}
The scores were measured on the rows that were also used to choose the best epoch, so they are slightly
optimistic. Limits: the model was trained for these tasks, on text like that of its training rows{data}. It
was not tested on other text, or for bias against groups of people.

## Use

Install mtkd, then run:

{use}

## Files

{files}
"""
SAVED = """\
- `model.json`: the encoder's configuration, and each task with its labels in the order of the logits
- `{weights}`: the encoder's weights; `{heads}`: one head per task
- `tokenizer.json`, `tokenizer_config.json`: the tokeniser

If there is a `config.json`, transformers' `AutoModel.from_pretrained` loads the encoder without heads. The
transformers classifiers (`AutoModelForSequenceClassification`, `pipeline`) would add a new, random head.
`config.json` therefore declares no labels, which makes a pipeline fail. To fine-tune the encoder with
transformers, pass `num_labels`.
"""
EXPORTED = """\
- `*.onnx`, `weights.bin`: the graphs and their weights
- `model.json`: each task with its labels in the order of the logits
- `export.json`: versions, digests and scores
- `tokenizer.json`, `tokenizer_config.json`: the tokeniser
"""


def model_card(
    encoder: str, tasks: Sequence[Task], info: ModelInfo, use: str, files: str, rounded: str = ""
) -> str:
    """Write the text of README.md.

    Args:
        encoder: a description of the encoder.
        use: how to use the model, as Markdown.
        files: the files of the directory, as Markdown.
        rounded: for a model with int8 weights, its scores as Markdown; those in `info` are then labelled as
            those of the fp32 model.
    """
    from huggingface_hub import ModelCardData

    title = f"{encoder} for {shorten([task.name for task in tasks])}" if tasks else encoder
    hub_sources = {task.name: task.hub for task in tasks if task.hub and info.data == "hub"}
    source = Path(info.data).name if info.data else None  # not the path of a user's directory
    base = _ORIGIN.get(info.base or "", info.base)
    data = ModelCardData(
        library_name="mtkd",
        tags=["mtkd", "knowledge-distillation"],
        pipeline_tag=_TYPES.get(tasks[0].kind) if tasks else "feature-extraction",
        base_model=base if base and is_hub_name(base) else None,
        datasets=sorted({name for name, _ in hub_sources.values()}) or None,
        model_name=title if info.scores and not rounded else None,
        eval_results=None if rounded else _results(tasks, info.scores, hub_sources, source) or None,
    )
    lines = "\n".join(_task_row(task, info.scores) for task in tasks) or "| none | | | |"
    origin_name = base if base and is_hub_name(base) else Path(base or "").name
    origin = f", which was initialised from {origin_name}" if base else ""
    lengths = {
        f"Long contexts are read in windows of {info.max_length} tokens."
        if task.type.predicts_spans
        else f"Texts are truncated to {info.max_length} tokens."
        for task in tasks
    }
    description = " ".join([f"{encoder}{origin}, with a head for each task.", *sorted(lengths)])
    data_note = f" (`{source}`)" if source else ""
    text = _TEXT.format(
        title=title,
        description=description,
        of_scores=" of the fp32 model" if rounded else "",
        tasks=lines,
        rounded=f"\n{rounded}\n" if rounded else "",
        data=data_note,
        use=use,
        files=files,
    )
    return as_url(f"---\n{data.to_yaml()}\n---\n\n{text}")


def usage(task: Task | None, load: str) -> str:
    """The code that predicts a row of a task."""
    if task is None:
        return "The model has no task heads; fine-tune it with `mtkd finetune --model DIR`."
    texts = ["A text.", "Another text."][: len(task.columns)]
    row = f"({', '.join(map(repr, texts))})" if len(texts) > 1 else repr(texts[0])
    return f"```python\n{load}\nmodel.predict({task.name!r}, [{row}])\n```"


def _task_row(task: Task, scores: Mapping[str, Mapping[str, Any]]) -> str:
    task_scores = [score for score in scores.values() if score["task"] == task.name]
    metrics = "; ".join(
        ", ".join(f"{name} {score_text(value)}" for name, value in score["metrics"].items())
        + (f" ({score['split']})" if len(task_scores) > 1 else "")
        for score in task_scores
    )
    cells = (task.name, ", ".join(task.columns), ", ".join(task.labels) or task.kind, metrics)
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"


def _results(
    tasks: Sequence[Task],
    scores: Mapping[str, Mapping[str, Any]],
    hub_sources: Mapping[str, tuple[str, str]],
    source: str | None,
) -> list[Any]:
    """The scores as metadata.

    Args:
        hub_sources: task -> data set and configuration, for tasks whose rows come from the hub.
        source: the name of the data that the other tasks' rows come from.
    """
    from huggingface_hub import EvalResult

    task_of_name = {task.name: task for task in tasks}
    return [
        EvalResult(
            task_type=_TYPES[task_of_name[score["task"]].kind],
            dataset_type=hub_sources.get(score["task"], (source or score["task"], ""))[0],
            dataset_config=hub_sources.get(score["task"], ("", score["task"]))[1],
            dataset_name=score["task"],
            dataset_split=score["split"],
            metric_type=name,
            metric_value=round(value, 4),
        )
        for score in scores.values()
        if score["task"] in task_of_name
        for name, value in score["metrics"].items()
    ]
