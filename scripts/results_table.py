"""Print the tables of docs/results-small.md from the runs of scripts/results.sh.

Usage: python scripts/results_table.py OUT
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

TASKS = ("sst2", "mrpc", "stsb", "rte", "qnli_squad", "quora", "snli")
SEEDS = range(10)


def primary(run: Path, task: str) -> float | None:
    """The score of a run on one task, in points; None if the run is not finished or lacks the task."""
    if not (run / "run.json").is_file():
        return None
    record = json.loads((run / "run.json").read_text())
    score = record.get("scores", {}).get(f"{task}/validation")
    return None if record["status"] != "finished" or score is None else 100 * score["primary"]


def scores_by_task(out: Path, pattern: str) -> list[list[float | None]]:
    """For each task, its scores for all seeds; a pattern with `{task}` names one run per task."""
    scores = []
    for task in TASKS:
        scores.append([primary(out / pattern.format(task=task, seed=seed), task) for seed in SEEDS])
    return scores


def as_text(scores: Sequence[float | None]) -> str:
    """Format the mean and, if there are several seeds, the sample standard deviation."""
    values = [value for value in scores if value is not None]
    if not values:
        return "-"
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


# Title of a row -> the run directories, for each seed.
ROWS = (
    ("labels only, one student per task", "labels-{task}-{seed}"),
    ("labels only, one student for all tasks", "labels-all-{seed}"),
    ("distilled, one student per task", "single-{task}-{seed}"),
    ("**distilled, one student for all tasks**", "multi-{seed}"),
    ("distilled, then fine-tuned", "tuned-{task}-{seed}"),
    ("without masked copies", "noaug-{seed}"),
    ("plain BiLSTM (no bi-attention)", "plain-{seed}"),
    ("word-level vocabulary, random embeddings", "word-{seed}"),
    ("WordPiece, random embeddings", "random-{seed}"),
    ("paraphrase tasks only", "paraphrase-{seed}"),
    ("NLI tasks only", "nli-{seed}"),
    ("transformer-3", "transformer-{seed}"),
)


def main() -> None:
    """Print the table as Markdown."""
    out = Path(sys.argv[1])
    print("| | seeds | " + " | ".join(TASKS) + " | mean |")
    print("|---|---|" + "---|" * (len(TASKS) + 1))
    teacher = json.loads((out / "teacher" / "run.json").read_text())["scores"]
    for title, key in (("best constant prediction", "majority"), ("teacher", "primary")):
        values = [100 * teacher[f"{task}/validation"][key] for task in TASKS]
        print(f"| {title} | 1 | " + " | ".join(f"{v:.1f}" for v in (*values, statistics.mean(values))) + " |")
    for title, pattern in ROWS:
        scores = scores_by_task(out, pattern)
        seeds = max(sum(value is not None for value in values) for values in scores)
        if not seeds:
            continue
        # Average over tasks only for seeds that have scores for all tasks.
        means = [statistics.mean(values) for values in zip(*scores, strict=True) if None not in values]
        print(f"| {title} | {seeds} | " + " | ".join(map(as_text, scores)) + f" | {as_text(means)} |")


if __name__ == "__main__":
    main()
