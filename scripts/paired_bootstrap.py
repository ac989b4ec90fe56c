"""Compare two models row by row: the difference of their scores with a paired bootstrap interval.

The same resampled validation rows are scored for both models, so an interval above 0 means that the second
model is better than the first beyond the chance of which rows were validated on. Tasks with windows over
contexts (SQuAD) are not supported.

    python scripts/paired_bootstrap.py --data DIR --limit 1500 runs/labels runs/distilled
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

import mtkd
from mtkd.models.inference import predict_logits
from tasks.batching import Encoded
from tasks.metrics import score
from tasks.sources import load_rows, open_data
from tasks.task import Task


def predictions(model: mtkd.Model, task: Task, data: str, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The model's predictions for the validation rows of a task, and the labels."""
    rows = load_rows(open_data(data), task, task.validation[0], limit)
    module = model.module
    encoded = Encoded.encode(module.reader.rows(rows), module.tokeniser)
    return task.type.decode(task, predict_logits(module, task, encoded)), encoded.labels


@click.command()
@click.argument("models", nargs=2, type=click.Path(exists=True, path_type=Path))
@click.option("--data", required=True, help="where the validation rows are")
@click.option("--limit", type=int, help="at most N validation rows per task (a seeded sample)")
@click.option("--samples", default=2000, show_default=True, help="bootstrap samples")
def main(models: tuple[Path, Path], data: str, limit: int | None, samples: int) -> None:
    """Print the score of each task for both models, and the difference with its 95% interval, in points."""
    first, second = (mtkd.load(path) for path in models)
    rng = np.random.default_rng(0)
    print("| task | rows | first | second | difference | 95% interval |")
    print("|---|---|---|---|---|---|")
    differences, points = np.zeros(samples), []
    for name, task in first.tasks.items():
        ours, labels = predictions(first, task, data, limit)
        others, _ = predictions(second, second.tasks[name], data, limit)

        def value(
            answers: np.ndarray, rows: np.ndarray, task: Task = task, labels: np.ndarray = labels
        ) -> float:
            return 100 * score(task, answers[rows], labels[rows]).primary

        every = np.arange(len(labels))
        scores = value(ours, every), value(others, every)
        drawn = rng.integers(len(labels), size=(samples, len(labels)))
        found = np.array([value(others, rows) - value(ours, rows) for rows in drawn])
        differences += found / len(first.tasks)
        points.append(scores)
        low, high = np.nanquantile(found, [0.025, 0.975])
        difference = scores[1] - scores[0]
        print(
            f"| {name} | {len(labels)} | {scores[0]:.1f} | {scores[1]:.1f} | {difference:+.1f} "
            f"| {low:+.1f} to {high:+.1f} |",
            flush=True,
        )
    mean = np.mean(points, axis=0)
    low, high = np.nanquantile(differences, [0.025, 0.975])
    difference = mean[1] - mean[0]
    print(f"| **mean** | | {mean[0]:.1f} | {mean[1]:.1f} | {difference:+.1f} | {low:+.1f} to {high:+.1f} |")


if __name__ == "__main__":
    main()
