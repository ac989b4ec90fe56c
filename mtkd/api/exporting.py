"""`mtkd.export`: write a trained model as ONNX graphs, which run without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mtkd.api.argument_types import Model
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.argument_markers import Range
from tasks.common.arguments import PositiveInt, checked
from tasks.task_names import TaskSpec

if TYPE_CHECKING:
    from mtkd.jobs.export import Export


@checked
@remote_paths("model", "tasks", "data", out="out")
def export(
    model: str | Path | Model,
    *,
    out: str | Path,
    tasks: TaskSpec | None = None,
    format: Literal["onnx", "transformers"] = "onnx",
    int8: bool = False,
    max_drop: Annotated[float, Range(0, 100)] = 0.5,
    reduce_range: bool | None = None,
    data: Any = None,
    limit: PositiveInt | None = None,
    overwrite: bool = False,
) -> Export:
    """Write a model as ONNX graphs with a tokeniser, and check that they give the model's logits.

    Batch size and sequence length are dynamic. `mtkd.load`, `evaluate`, `predict` and `bench_inference` take
    the result, and `mtkd.runtime.OnnxModel` runs it without torch.

    Args:
        model: a run or model directory, or a model.
        out: the directory to write.
        tasks: by default all tasks that the model has heads for.
        format: "onnx", or "transformers": the classifier or question-answering model of one task, which
            `AutoModelForSequenceClassification` and the like load. Only Transformers with BERT's pooling
            layer (`student.transformer.pooling=pooler`), or with a head for spans, can be written so.
        int8: write int8 weights, which take about a quarter of the size and are faster. This needs `data`: if
            the export scores significantly lower on a task, by more than `max_drop` points (0 to 100), the
            heads stay in fp32, and if that is not enough, also the last layers.
        max_drop: see `int8`.
        reduce_range: use 7 instead of 8 bits for int8 weights, for processors without VNNI (most before
            2019); by default what this processor needs.
        data: labelled rows on which the model and the export are scored; see `Model.evaluate`.
        limit: the maximum number of rows per split of `data`.
        overwrite: replace another export in `out`.

    Returns:
        The largest difference of a logit (of the fp32 graphs), the size, and with `data` both models' scores.

    Raises:
        UserError: there is no such model or task, `out` holds other files, a package is missing, the logits
            of the fp32 graphs differ by more than 0.0001 (of the largest logit, if that is above 1), or an
            int8 export scores too low.
    """
    from mtkd.api.model_arguments import path_or_module
    from mtkd.jobs.export import export as export_model

    source = path_or_module(model)
    assert source is not None
    return export_model(
        source,
        Path(out),
        tasks,
        format=format,
        int8=int8,
        max_drop=max_drop,
        reduce_range=reduce_range,
        data=data,
        limit=limit,
        overwrite=overwrite,
    )
