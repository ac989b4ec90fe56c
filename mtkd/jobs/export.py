"""Export a model to ONNX: graphs, tokeniser, and a record of how the export compares."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mtkd
from mtkd.jobs.evaluate import evaluate
from mtkd.models.exported import ExportedModel
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import TOKENISER, digest_model, write_description
from mtkd.onnx_export.graphs import WEIGHTS, require_exporter, trace, write_graphs
from mtkd.onnx_export.parity import check_parity
from mtkd.runtime import EXPORT, FORMAT, OnnxModel, described_tokeniser
from mtkd.storage.output_directory import OutputKind, check_directory
from tasks.errors import UserError, shorten
from tasks.files import atomic_directory, digest_file, read_json, write_json
from tasks.progress import say
from tasks.task_names import TaskSpec, resolve

EXPORTS = OutputKind(
    "export",
    EXPORT,
    (
        r"model.*\.onnx",
        r"weights\.bin",
        r"README\.md",
        r"(model|export|tokenizer.*|special_tokens_map)\.json",
    ),
    lambda place: read_json(place / EXPORT).get("source") if (place / EXPORT).is_file() else None,
)
README = """\
# A model exported by mtkd

In Python, without torch (`pip install onnxruntime tokenizers numpy pyarrow`, and mtkd):

    from mtkd.runtime import OnnxModel

    OnnxModel(".").predict("{task}", {rows})

`mtkd predict`, `mtkd evaluate` and `mtkd bench inference` take this directory as `--model`. Tasks: {tasks}.
"""


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        difference: the largest difference between a logit of the export and of the model.
        bytes: size of graphs and weights.
        scores: task (or "task/split") -> its scores by the model and by the export, with `data`.
    """

    path: Path
    tasks: list[str]
    difference: float
    bytes: int
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "path": str(self.path)}


def export(
    model: Path | MultiTaskModel,
    out: Path,
    spec: TaskSpec | None = None,
    *,
    data: Any = None,
    limit: int | None = None,
    overwrite: bool = False,
) -> Export:
    """Export a model with the heads of some tasks, and check that the export agrees with it.

    Args:
        out: the directory to write; nothing is left there if a check fails.
        spec: the tasks; None = all of the model.
        data: labelled rows on which the model and the export are scored and compared.
        limit: at most so many rows per split of `data`.

    Raises:
        UserError: no such model or task, `out` holds something else, the packages that write ONNX are
            missing, or the export does not agree with the model.
    """
    require_exporter()
    if limit is not None and data is None:
        raise UserError(f"`limit={limit}` has no effect without `data`", hint="pass labelled rows as `data`")
    # A copy, because the heads are chosen and the model is moved to the CPU.
    loaded = isinstance(model, MultiTaskModel)
    part = copy.deepcopy(model) if isinstance(model, MultiTaskModel) else MultiTaskModel.load(model)
    if isinstance(part, ExportedModel):
        raise UserError("this model is exported already", hint="export the run that it was made from")
    tasks = resolve(spec, part.tasks.values()) if spec else list(part.tasks.values())
    if not tasks:
        raise UserError("the model has no task heads to export", hint="train it on tasks first")
    part.require(tasks, "the model")
    part.keep(tasks)
    part.cpu().eval()
    source = {"model": None if loaded else digest_model(Path(str(model))), "tasks": [t.name for t in tasks]}
    _check_directory(out, source, overwrite)
    say(f"tracing {part.encoder.shape.family} with {len(tasks)} tasks")
    graphs = trace(part)
    with atomic_directory(out) as place:
        part.tokeniser.save(place)
        write_description(place, part.encoder.config, tasks, part.info)
        record: dict[str, Any] = {
            "format": FORMAT,
            "mtkd": mtkd.__version__,
            "source": source,
            "input_format": part.encoder.input_format,
            "graphs": write_graphs(graphs, place),
            "tokeniser": described_tokeniser(part.tokeniser),
            "parameters": count_parameters(part).to_json(),
        }
        names = [graph["file"] for graph in record["graphs"]]
        files = [*names, WEIGHTS, TOKENISER, "model.json"]
        record["files"] = {name: digest_file(place / name) for name in files}
        write_json(place / EXPORT, record)
        difference = check_parity(part, OnnxModel(place))
        scores = _compare_scores(part, place, data, spec, limit) if data is not None else {}
        write_json(place / EXPORT, record | {"difference": difference, "scores": scores})
        _describe(place, tasks)
        size = sum((place / name).stat().st_size for name in (*names, WEIGHTS))
    return Export(out, [task.name for task in tasks], difference, size, scores)


def _check_directory(out: Path, source: Any, overwrite: bool) -> None:
    """Check that nothing but another export is replaced, and that only if it may be."""
    hint = "replace it with `overwrite=True`, or choose another directory with `out`"
    if (out / EXPORT).is_file() and not overwrite:
        raise UserError(f"{out} holds an export already", hint=hint)
    check_directory(out, EXPORTS, source, overwrite=overwrite)
    if out.is_dir() and (hidden := sorted(file.name for file in out.iterdir() if file.name[0] == ".")):
        raise UserError(
            f"{out} holds hidden files, which would be lost: {shorten(hidden)}",
            hint="choose an empty or new directory with `out`",
        )


def _compare_scores(
    model: MultiTaskModel, place: Path, data: Any, spec: TaskSpec | None, limit: int | None
) -> dict[str, dict[str, float]]:
    """Score the model and the export on the same rows."""
    before = evaluate(model, data, spec, limit=limit, device="cpu")
    after = evaluate(place, data, spec, limit=limit, device="cpu")
    return {name: {"model": score.primary, "export": after[name].primary} for name, score in before.items()}


def _describe(place: Path, tasks: list[Any]) -> None:
    """Write the README of an export."""
    first = tasks[0]
    row = '["A text."]' if len(first.columns) == 1 else '[("A text.", "Another text.")]'
    text = README.format(task=first.name, rows=row, tasks=", ".join(task.name for task in tasks))
    (place / "README.md").write_text(text, encoding="utf-8")
