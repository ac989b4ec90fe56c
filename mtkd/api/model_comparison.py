"""`mtkd.compare_models`: the scores of models, each with several seeds, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtkd.api.argument_types import Device, ModelsByName
from mtkd.evaluation.differences import Splits
from mtkd.evaluation.model_comparison import ModelComparison, compare_predictions
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import PositiveInt, checked
from tasks.common.errors import UserError, unknown, warn_caller
from tasks.task import Task
from tasks.task_names import TaskSpec


@checked
@remote_paths("data", "tasks")
def compare_models(
    models: ModelsByName,
    data: Any = None,
    tasks: TaskSpec | None = None,
    *,
    reference: str | None = None,
    split: str | None = None,
    limit: PositiveInt | None = None,
    batch: PositiveInt = 64,
    device: Device | None = None,
) -> ModelComparison:
    """Score several models on the same rows, and compare each of them with a reference.

    The differences have 95% intervals of a paired bootstrap over the rows, and over the seeds if a name
    stands for several models. `mtkd.compare` also trains the models, but only those of recipes.

    Args:
        models: name -> a model, as `mtkd.evaluate` takes it; or a list of models that differ only in their
            seed. The n-th models of two lists of the same length are paired, so give both in the order of
            their seeds. A transformers checkpoint must name its labels, unless they are in the task's order.
        data, tasks, split, limit, batch: see `Model.evaluate`.
        reference: the name of the model that the others are compared with; by default the first.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.

    Returns:
        The scores and the differences.

    Raises:
        UserError: there is no model, or a name stands for none; `reference` is not among the names; a model
            cannot be evaluated; or the models were scored on different tasks.
    """
    from mtkd.api.measurement import evaluate
    from mtkd.evaluation.scoring import predictions_by_task
    from mtkd.teachers.teacher_names import as_pair

    names = list(models)
    if not names:
        raise UserError("`models` is empty", expected='a mapping such as {"student": [run0, run1]}')
    if reference is not None and reference not in models:
        raise unknown("reference", reference, names)
    predictions: dict[str, list[Mapping[str, Splits]]] = {}
    found_tasks: dict[str, Task] = {}
    for name, given in models.items():
        runs: Sequence[Any] = [given] if as_pair(given) or not isinstance(given, list | tuple) else given
        if not runs:
            raise UserError(
                f"{name!r} in `models` stands for no model", expected="a model, or a list of them"
            )
        predictions[name] = []
        for number, model in enumerate(runs):
            result = evaluate(model, data, tasks, split=split, limit=limit, batch=batch, device=device)
            for warning in result.warnings:
                warn_caller(f"{name}[{number}]: {warning}" if len(runs) > 1 else f"{name}: {warning}")
            found_tasks |= {task.name: task for task in result.tasks}
            predictions[name].append(predictions_by_task(result.scores))
    reference = reference or names[0]
    if unpaired := [name for name in names if len(predictions[name]) != len(predictions[reference])]:
        warn_caller(
            f"{', '.join(map(repr, unpaired))} and {reference!r} have different numbers of models, so their "
            "seeds are not paired"
        )
    return compare_predictions(found_tasks, predictions, reference)
