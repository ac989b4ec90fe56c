"""Export a model as ONNX graphs or as a transformers checkpoint, and compare the export with the model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mtkd
from mtkd.evaluation.differences import Difference
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.export_directory import EXPORTS, TRANSFORMERS, check_export_directory
from mtkd.jobs.export_int8 import int8_table, write_int8
from mtkd.jobs.export_transformers import as_transformers
from mtkd.model_files import EXPORT, EXPORT_FORMAT
from mtkd.models.exported import ExportedModel
from mtkd.models.model_card import EXPORTED, model_card, usage
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import digest_model, write_description
from mtkd.onnx_export.graphs import GRAPH_WEIGHTS, require_exporter, trace, write_graphs
from mtkd.onnx_export.int8 import lacks_vnni
from mtkd.onnx_export.parity import check_parity
from mtkd.output_files.output_directory import check_directory, open_directory
from mtkd.runtime import OnnxModel, tokeniser_names
from mtkd.torch_state import with_torch_defaults
from tasks.common.errors import UserError, counted, shorten
from tasks.common.files import staged_directory
from tasks.common.hub_loading import quiet_transformers
from tasks.common.progress import say
from tasks.common.records import write_record
from tasks.common.sha256 import digest_file
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve

ExportFormat = Literal["onnx", "transformers"]
MAX_DROP = 0.5  # points


@dataclass(frozen=True)
class Export:
    """A finished export.

    Attributes:
        path: its directory.
        tasks: the names of its tasks.
        difference: the largest absolute difference between the logits of the fp32 export and of the model.
        bytes: the size of graphs and weights.
        int8: True if the weights are int8.
        kept: the parts of an int8 export that stay in fp32: "heads", "last layers".
        scores: task -> how much higher the export scores than the model; "average" = over all tasks. Empty
            if the two were not scored.
    """

    path: Path
    tasks: list[str]
    difference: float
    bytes: int
    int8: bool = False
    kept: Sequence[str] = ()
    scores: Mapping[str, Difference] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        scores = {name: difference.to_json() for name, difference in self.scores.items()}
        return {**vars(self), "path": str(self.path), "kept": list(self.kept), "scores": scores}


@with_torch_defaults
def export(
    model: Path | MultiTaskModel,
    out: Path,
    spec: TaskSpec | None = None,
    *,
    format: ExportFormat = "onnx",
    int8: bool = False,
    reduce_range: bool | None = None,
    max_drop: float = MAX_DROP,
    data: Any = None,
    limit: int | None = None,
    overwrite: bool = False,
) -> Export:
    """Export a model with the heads of some tasks, and check that the export agrees with it.

    The fp32 graphs must give the model's logits. Those of an int8 export differ, so it is checked on labelled
    rows instead: if it scores more than `max_drop` points lower on a task, and significantly so (paired
    bootstrap), the heads stay in fp32, then also the last layers. If that is not enough, nothing is written.

    Args:
        out: the directory to write; nothing is left there if a check fails.
        spec: the tasks; None = all tasks of the model.
        format: "onnx", or "transformers": the classifier or question-answering model of one task, which
            `from_pretrained` loads. Few models can be converted; see `as_transformers`.
        int8: write int8 weights; see `mtkd.onnx_export.int8.quantise`.
        reduce_range: use 7 bits for these weights, for processors without VNNI; None = if this processor
            needs it.
        max_drop: the largest drop of an int8 export's score that is accepted, in points (0 to 100).
        data: labelled rows on which the model and the export are scored and compared; for int8, by default
            those of the tasks' own files.
        limit: the maximum number of rows per split of `data`.

    Raises:
        UserError: no such model or task, `out` holds something else, the packages that write ONNX graphs are
            missing, the export does not agree with the model, or an int8 export scores too low.
    """
    _check_options(format, int8, reduce_range, max_drop, overwrite)
    # A copy, because its heads are removed and it is moved to the CPU.
    model_copy = copy.deepcopy(model) if isinstance(model, MultiTaskModel) else MultiTaskModel.load(model)
    if isinstance(model_copy, ExportedModel):
        raise UserError("this model is already an export", hint="export the run that it was made from")
    tasks = _resolve_tasks(model_copy, spec)
    _check_rows(tasks, int8, data, limit)
    model_copy.set_tasks(tasks)
    model_copy.cpu().eval()
    if format == "transformers":
        return _export_transformers(model_copy, tasks, out, data, limit)
    source = {
        "model": None if isinstance(model, MultiTaskModel) else digest_model(model),
        "tasks": [t.name for t in tasks],
    }
    check_export_directory(out, source, overwrite)
    say(f"exporting {counted(len(tasks), 'task')} to ONNX")
    graphs = trace(model_copy)
    with (
        open_directory(out, EXPORTS, source, overwrite=overwrite),
        staged_directory(out, EXPORT) as directory,
    ):
        model_copy.tokeniser.save(directory)
        write_description(directory, model_copy.encoder.config, tasks, model_copy.info)
        record = _describe_model(model_copy, source)
        _write_export(directory, graphs, record)
        difference = check_parity(model_copy, OnnxModel(directory))
        scores: dict[str, Difference] = {}
        fp32_parts: tuple[str, ...] = ()
        if int8:
            seven_bits = lacks_vnni() if reduce_range is None else reduce_range

            def write_and_score(quantised: Mapping[int | None, Any]) -> dict[str, Difference]:
                _write_export(directory, quantised, record)
                return _differences(model_copy, directory, data, tasks, limit)

            fp32_parts, scores = write_int8(
                graphs, write_and_score, reduce_range=seven_bits, max_drop=max_drop
            )
            record["int8"] = {"kept": fp32_parts, "reduce_range": seven_bits}
        elif data is not None:
            scores = _differences(model_copy, directory, data, tasks, limit)
        _write_card(directory, model_copy, tasks, int8_table(scores) if int8 else "")
        size = _export_bytes(directory, record["files"])
        export = Export(out, [task.name for task in tasks], difference, size, int8, fp32_parts, scores)
        write_record(
            directory / EXPORT, record | {key: export.to_json()[key] for key in ("difference", "scores")}
        )
    return export


def _describe_model(model: MultiTaskModel, source: Mapping[str, Any]) -> dict[str, Any]:
    """The part of export.json that does not depend on the graphs: the model, and how it reads texts."""
    heads = [head for head, task in model.tasks.items() if task.name in model.reader.side_by_side]
    return {
        "format": EXPORT_FORMAT,
        "mtkd": mtkd.__version__,
        "source": source,
        "input_format": model.encoder.input_format,
        **({"side_by_side": heads} if heads else {}),
        "tokeniser": tokeniser_names(model.tokeniser),
        "parameters": count_parameters(model).to_json(),
    }


def _check_options(
    format: ExportFormat, int8: bool, reduce_range: bool | None, max_drop: float, overwrite: bool
) -> None:
    """Raise UserError if an option has no effect, or if ONNX packages are missing."""
    for name, is_given in {
        f"reduce_range={reduce_range}": reduce_range is not None,
        f"max_drop={max_drop}": max_drop != MAX_DROP,
    }.items():
        if is_given and not int8:
            raise UserError(f"`{name}` has no effect without `int8`", hint="also pass `int8=True`")
    if format == "onnx":
        require_exporter()
    elif int8:
        raise UserError("`int8` applies only to `format='onnx'`", hint="leave it out, or use this format")
    elif overwrite:
        raise UserError(
            "`overwrite` applies only to `format='onnx'`", hint="choose a new directory with `out`"
        )


def _resolve_tasks(model: MultiTaskModel, spec: TaskSpec | None) -> list[Task]:
    """The tasks to export; UserError if there are none, or if the model has no head for one."""
    tasks = resolve(spec, model.tasks.values()) if spec is not None else list(model.tasks.values())
    if not tasks:
        raise UserError("the model has no task heads to export", hint="train it on tasks first")
    model.require_heads(tasks, "the model")
    return tasks


def _check_rows(tasks: Sequence[Task], int8: bool, data: Any, limit: int | None) -> None:
    """Raise UserError if an int8 export has no labelled rows, or if `limit` has no rows to limit."""
    without = [task.name for task in tasks if not task.files]
    if int8 and data is None and without:
        raise UserError(
            f"an int8 export is checked on labelled rows, and there are none for {shorten(without)}",
            hint="pass the rows as `data`; a few hundred per task are enough",
        )
    if limit is not None and data is None and not int8:
        raise UserError(f"`limit={limit}` has no effect without `data`", hint="pass labelled rows as `data`")


def _export_transformers(
    model: MultiTaskModel, tasks: Sequence[Task], out: Path, data: Any, limit: int | None
) -> Export:
    """Export the model of one task as a transformers checkpoint; UserError if that is impossible."""
    if len(tasks) != 1:
        raise UserError(
            f"a transformers checkpoint has the head of one task, not {len(tasks)}",
            hint="name it: `tasks='NAME'`",
        )
    (task,) = tasks
    check_directory(out, TRANSFORMERS, task.name)
    transformers_model, difference = as_transformers(model, task)
    with (
        open_directory(out, TRANSFORMERS, task.name),
        staged_directory(out, TRANSFORMERS.marker) as directory,
    ):
        with quiet_transformers():
            transformers_model.save_pretrained(directory)
        model.tokeniser.hf.model_max_length = model.info.max_length  # transformers truncates texts to it
        model.tokeniser.save(directory)
        kind = type(transformers_model).__name__
        use = f'```python\nfrom transformers import {kind}\n\n{kind}.from_pretrained("DIR")\n```'
        card = model_card(
            model.encoder.spec.family, tasks, model.info, use, "As `save_pretrained` writes them."
        )
        (directory / "README.md").write_text(card, encoding="utf-8")
        scores = _differences(model, directory, data, tasks, limit) if data is not None else {}
        size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return Export(out, [task.name], difference, size, scores=scores)


def _write_export(directory: Path, graphs: Mapping[int | None, Any], record: dict[str, Any]) -> None:
    """Write the graphs, and `record` with the digests of all files as export.json."""
    record["graphs"] = write_graphs(graphs, directory)
    names = [graph["file"] for graph in record["graphs"]]
    names += [GRAPH_WEIGHTS, "model.json", *(file.name for file in directory.glob("tokenizer*.json"))]
    record["files"] = {name: digest_file(directory / name) for name in names}
    write_record(directory / EXPORT, record)


def _export_bytes(directory: Path, files: Iterable[str]) -> int:
    """The size of graphs and weights in bytes."""
    return sum(
        (directory / file).stat().st_size for file in files if file == GRAPH_WEIGHTS or file.endswith(".onnx")
    )


def _differences(
    model: MultiTaskModel, directory: Path, data: Any, tasks: Sequence[Task], limit: int | None
) -> dict[str, Difference]:
    """How much higher the export scores than the model on the same rows."""
    evaluation = evaluate(directory, data, list(tasks), limit=limit, device="cpu", against=model)
    (differences,) = evaluation.differences.values()
    return differences


def _write_card(directory: Path, model: MultiTaskModel, tasks: list[Task], int8_scores: str) -> None:
    """Write the model card of an export; `int8_scores`: the table of scores of an int8 export, else ""."""
    load = 'from mtkd.runtime import OnnxModel  # needs no torch\n\nmodel = OnnxModel("DIR")'
    use = usage(tasks[0], load)
    title = f"{model.encoder.spec.family}, exported to ONNX"
    card = model_card(title, tasks, model.info, use, EXPORTED, int8_scores)
    (directory / "README.md").write_text(card, encoding="utf-8")
