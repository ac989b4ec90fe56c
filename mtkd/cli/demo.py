"""`mtkd demo`: run the pipeline mtkd/pipelines/demo.toml on the pocket tasks, and print its results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mtkd.cli.option_values import NON_NEGATIVE_INT
from mtkd.cli.options import echo, quiet_option, say, table
from mtkd.run_record import read_run_record
from tasks.common.files import write_json
from tasks.common.text_format import score_text

# Step of the pipeline -> its name in demo.json.
STEP_NAMES = {
    "teacher": "teacher",
    "control": "control",
    "distilled": "distilled",
    "finetuned": "fine-tuned",
    "report": "report",
}
# The settings of the pipeline that `--tiny` changes.
TINY: dict[str, Any] = {
    "tasks": ["sst2", "mrpc"],
    "limit": 64,
    "eval-limit": 32,
    "steps.teacher.epochs": 1,
    "steps.control.steps": 6,
    "steps.distilled.steps": 6,
    "steps.distilled.unlabelled": {"sst2": "unlabelled", "mrpc": "unlabelled"},
    "steps.distilled.unlabelled-limit": 32,
    "steps.finetuned.epochs": 1,
}


@click.command()
@click.option(
    "--out", default="runs/demo", show_default=True, type=click.Path(path_type=Path), help="output directory"
)
@click.option("--seed", default=0, show_default=True, type=NON_NEGATIVE_INT, help="random seed")
@click.option("--overwrite", is_flag=True, help="start over instead of resuming the last demo")
@click.option(
    "--tiny",
    is_flag=True,
    help="two tasks and a few rows: shows the steps in a minute or two, but learns little",
)
@quiet_option
def demo(out: Path, seed: int, overwrite: bool, tiny: bool) -> None:
    """Train a teacher, distil and fine-tune a student, and measure them, in 1 to 5 minutes on 2 cores.

    `demo.json` in the output directory has the scores (0 to 1), the gain with its interval, and the run time.
    """
    from mtkd.pipelines.run import run_pipeline

    if tiny:
        say("--tiny checks that everything runs: two tasks, 64 rows each; the scores carry no information")
    started = time.monotonic()
    settings = {"out": str(out), "seed": seed} | (TINY if tiny else {})
    results = run_pipeline("demo", settings=settings, overwrite=overwrite)
    tasks = tuple(task for step, _, task in (r.name.partition("/") for r in results) if step == "finetuned")
    seconds = dict.fromkeys(STEP_NAMES.values(), 0.0)
    for result in results:
        seconds[STEP_NAMES[result.name.partition("/")[0]]] += (
            (result.seconds or 0.0) if result.reason else 0.0
        )
    scores = _scores(out, tasks)
    gain = _gain(out, tasks)
    speed, size = _bench(out, batch=8 if tiny else 64)
    seconds["total"] = time.monotonic() - started
    _report(scores, gain, speed, size)
    record = {
        "mean": scores["average"],
        "tasks": scores,
        "gain": gain.to_json(),
        "speed": speed,
        "size": size,
    }
    write_json(out / "demo.json", record | {"seed": seed, "seconds": seconds["total"], "steps": seconds})
    times = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if name != "total")
    say(f"the demo took {seconds['total']:.0f} s ({times}); everything is in {out}; open {out}/report.html")


def _scores(out: Path, tasks: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Task (or "average") -> the score of the best constant prediction, the teacher, and each student."""
    models = ("teacher", "control", "distilled")
    runs = {name: read_run_record(out / name / "run.json")["scores"] for name in models}
    scores_by_task = {}
    for task in tasks:
        key = f"{task}/validation"
        scores_by_task[task] = {"majority": runs["teacher"][key]["majority"]}
        scores_by_task[task] |= {name: scores[key]["primary"] for name, scores in runs.items()}
        tuned = read_run_record(out / "finetuned" / task / "run.json")["scores"]
        scores_by_task[task]["finetuned"] = tuned[key]["primary"]
    columns = list(scores_by_task[tasks[0]])
    average = {name: sum(scores[name] for scores in scores_by_task.values()) / len(tasks) for name in columns}
    return scores_by_task | {"average": average}


def _gain(out: Path, tasks: tuple[str, ...]) -> Any:
    """The paired difference between the distilled student and the one that learned from labels alone."""
    from mtkd.evaluation.differences import AVERAGE, differences_by_task, sample_scores
    from mtkd.evaluation.scoring import read_predictions
    from mtkd.training.run_directory import PREDICTIONS
    from tasks.task_names import resolve

    runs = [read_predictions(out / name / PREDICTIONS) for name in ("distilled", "control")]
    pairs = {task.name: sample_scores(task, [{0: run[task.name]} for run in runs]) for task in resolve(tasks)}
    distilled, control = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
    return differences_by_task(distilled, control)[AVERAGE]


def _bench(out: Path, batch: int) -> tuple[float, float]:
    """Time teacher and student; returns the student's speed and weights relative to the teacher's."""
    from mtkd.cli.measure import BENCH_COLUMNS, bench_row
    from mtkd.evaluation.inference_bench import BenchSettings, bench_inference

    models = {"teacher": out / "teacher", "distilled student": out / "distilled"}
    results = bench_inference(models, BenchSettings(seq_len=48, batch=batch, rounds=5, warmup=1))
    table(BENCH_COLUMNS, [bench_row(result) for result in results], f"Inference, {batch} rows of 48 tokens")
    teacher, student = (result.parameters.without_embeddings for result in results)
    return results[1].speed, student / teacher


def _report(scores: Mapping[str, Mapping[str, float]], gain: Any, speed: float, size: float) -> None:
    """Print a table of scores, and in sentences the gain, the Pareto front, the speed and the size."""
    columns = (
        "task",
        "best constant prediction",
        "teacher",
        "control (labels only)",
        "distilled",
        "then fine-tuned",
    )
    rows = [(name, *map(score_text, line.values())) for name, line in scores.items()]
    table(columns, rows, "Scores on validation rows")
    average = scores["average"]
    points = [f"{100 * value:+.1f}" for value in (gain.difference, gain.low, gain.high)]
    echo(
        f"Learning from the teacher instead of labels changes the score by {points[0]} points "
        f"(95% interval {points[1]} to {points[2]}), after the same number of steps."
    )
    if (gained := average["teacher"] - average["majority"]) > 0:
        kept = (average["distilled"] - average["majority"]) / gained
        echo(
            f"The distilled student keeps {kept:.0%} of what the teacher gains over the best constant "
            "prediction."
        )
    else:
        echo(
            "The teacher is no better than the best constant prediction: it has learned too little to teach."
        )
    echo(f"Pareto front: {_pareto_front(average, speed)}.")
    echo(
        f"The student has {size:.0%} of the teacher's weights (without embeddings) and {speed:.1f} times the "
        "teacher's speed."
    )


def _pareto_front(average: Mapping[str, float], speed: float) -> str:
    """Describe the models on the Pareto front of score and speed, the slowest first.

    Args:
        average: model -> average score; all but the teacher have the student's architecture.
        speed: the student's speed relative to the teacher's.
    """
    best = max(("control", "distilled", "finetuned"), key=lambda name: average[name])
    points = [("teacher", average["teacher"], 1.0), (best, average[best], speed)]
    front = [p for p in points if not any(q[1:] != p[1:] and q[1] >= p[1] and q[2] >= p[2] for q in points)]
    front.sort(key=lambda point: point[2])
    return ", ".join(
        f"{STEP_NAMES[name]} {score_text(score)} at {times:.1f}x the speed" for name, score, times in front
    )
