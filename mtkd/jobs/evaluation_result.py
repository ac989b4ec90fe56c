"""The result of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mtkd.evaluation.class_report import ClassReport
from mtkd.evaluation.differences import Difference
from mtkd.evaluation.scoring import TaskScores, averages, by_task
from tasks.common.text_format import aligned, score_text
from tasks.task import Task


@dataclass(frozen=True, repr=False)
class Evaluation(Mapping[str, TaskScores]):
    """The scores of a model, by task; by "task/split" for a task that was scored on several splits.

    Attributes:
        scores: one entry per scored split.
        reports: "task/split" -> report on each class, for tasks with one class per row.
        skipped: "task" or "task/split" -> why it was not scored.
        warnings: warnings about these scores.
        differences: baseline or other model -> task -> how much higher this model scores, with a paired
            bootstrap interval; "average" = over all tasks. See `mtkd.evaluation.differences`.
        baseline_rows: maximum number of labelled rows per task that the baselines learned from; None = there
            are none.
        tasks: the tasks that were scored.
    """

    scores: list[TaskScores]
    reports: dict[str, ClassReport]
    skipped: dict[str, str]
    warnings: list[str]
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    baseline_rows: int | None = None
    tasks: Sequence[Task] = ()

    def __str__(self) -> str:
        """Tables of the scores and of the differences from other models; then skipped splits and warnings."""
        lines = [("task", "rows", "score", "best constant prediction", "metrics")]
        task_averages = {f"{score.task}/average": score for score in averages(self.scores)}
        for name, score in {**self, **task_averages}.items():
            metrics = ", ".join(f"{metric} {score_text(value)}" for metric, value in score.metrics.items())
            constant = score_text(score.majority)
            lines.append((name, f"{score.rows:,}", score_text(score.primary), constant, metrics))
        table = aligned(lines)
        for reference, differences in self.differences.items():
            head = ("task", "score", "reference", "difference", "95% interval", "")
            table += ["", f"against {reference}, in points:"]
            table += aligned([head, *((name, *value.columns()) for name, value in differences.items())])
        skipped = [f"{name} is skipped: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([*table, *skipped, *self.warnings])

    __repr__ = __str__

    def __getitem__(self, name: str) -> TaskScores:
        return by_task(self.scores)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(by_task(self.scores))

    def __len__(self) -> int:
        return len(self.scores)
