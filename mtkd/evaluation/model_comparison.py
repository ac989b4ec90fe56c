"""The comparison of several models, each trained with one or more seeds, on the same rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtkd.evaluation.differences import AVERAGE, Difference, Splits, differences_by_task, sample_scores
from tasks.common.errors import UserError
from tasks.common.text_format import aligned
from tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """The scores of some models, and their differences from one of them.

    Attributes:
        reference: the name of the model that the others are compared with.
        scores: model -> task -> the score of each seed, as a fraction.
        differences: model -> task, or "average" -> the difference from the reference.
    """

    reference: str
    scores: dict[str, dict[str, list[float]]]
    differences: dict[str, dict[str, Difference]]

    def __str__(self) -> str:
        """A table of the scores in points, and one of the differences."""
        tasks = list(self.scores[self.reference])
        columns = [*tasks, *([AVERAGE] if len(tasks) > 1 else [])]
        lines = [["", *columns]]
        for name, by_task in self.scores.items():
            cells = [_points(by_task[task]) for task in tasks]
            averages = list(map(statistics.fmean, zip(*by_task.values(), strict=True)))
            lines.append([name, *cells, *([_points(averages)] if len(tasks) > 1 else [])])
        several = any(len(scores) > 1 for by_task in self.scores.values() for scores in by_task.values())
        title = "mean score in points ± standard deviation over seeds" if several else "score in points"
        text = [title, *aligned(lines)]
        head = ("", "task", "score", "reference", "difference", "95% interval", "")
        rows = [
            (name if number == 0 else "", task, *difference.columns())
            for name, by_task in self.differences.items()
            for number, (task, difference) in enumerate(by_task.items())
        ]
        if rows:
            text += ["", f"against {self.reference}, in points:", *aligned([head, *rows])]
        return "\n".join(text)

    __repr__ = __str__

    def to_frame(self) -> DataFrame:
        """The scores as a pandas DataFrame, as fractions: one row for each model, task and run.

        The columns are "model", "task", "run" (the position in the list of models) and "score".
        """
        from pandas import DataFrame

        records = [
            (name, task, run, score)
            for name, by_task in self.scores.items()
            for task, scores in by_task.items()
            for run, score in enumerate(scores)
        ]
        return DataFrame(records, columns=["model", "task", "run", "score"])

    def differences_to_frame(self) -> DataFrame:
        """The differences as a pandas DataFrame; see `differences_frame`."""
        return differences_frame(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        differences = {
            name: {task: difference.to_json() for task, difference in by_task.items()}
            for name, by_task in self.differences.items()
        }
        return {"reference": self.reference, "scores": self.scores, "differences": differences}


def compare_predictions(
    tasks: Mapping[str, Task], models: Mapping[str, Sequence[Mapping[str, Splits]]], reference: str
) -> ModelComparison:
    """Compare models by their predictions.

    Args:
        tasks: name -> task.
        models: model -> for each seed, task -> split -> predictions.

    Raises:
        UserError: the models were not scored on the same tasks and rows.
    """
    names = list(models[reference][0])
    for name, runs in models.items():
        for run in runs:
            if set(run) != set(names):
                raise UserError(
                    f"{name!r} was scored on {', '.join(run)}, and {reference!r} on {', '.join(names)}",
                    expected="models of the same tasks",
                    hint="name the tasks that all of them have: `tasks=['sst2']`",
                )
    samples: dict[str, dict[str, Any]] = {name: {} for name in models}
    for task in names:
        by_seed = [{seed: run[task] for seed, run in enumerate(runs)} for runs in models.values()]
        for name, found in zip(models, sample_scores(tasks[task], by_seed), strict=True):
            samples[name][task] = found
    scores = {
        name: {task: list(map(float, found.scores)) for task, found in by_task.items()}
        for name, by_task in samples.items()
    }
    differences = {
        name: differences_by_task(by_task, samples[reference])
        for name, by_task in samples.items()
        if name != reference
    }
    return ModelComparison(reference, scores, differences)


def differences_frame(differences: Mapping[str, Mapping[str, Difference]]) -> DataFrame:
    """Differences as a pandas DataFrame, with one row for each model and task.

    The columns are "model", "task" ("average" = over all tasks), "score", "reference", "difference", "low"
    and "high" (the 95% interval of the difference), all as fractions, and "verdict".
    """
    from pandas import DataFrame

    names = ("model", "task", "score", "reference", "difference", "low", "high", "verdict")
    records = [
        {"model": name, "task": task, **difference.to_json()}
        for name, by_task in differences.items()
        for task, difference in by_task.items()
    ]
    return DataFrame(records, columns=list(names))


def _points(scores: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(scores):.1f}"
    return mean if len(scores) == 1 else f"{mean} ± {100 * statistics.stdev(scores):.1f}"
