"""`mtkd demo`: the whole workflow on the pocket tasks, by the same commands that a user types."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mtkd.cli.options import quiet_option, say, table
from tasks.files import read_json, write_json

TASKS = ("sst2", "mrpc", "stsb")
PRECISION = "--set train.precision=auto"
STUDENT = (
    "distill layerwise-3 --set student.max_length=48 --lr 3e-4 --batch 16 --steps {steps} "
    f"{PRECISION} --set teacher.precision=auto --seed {{seed}}"
)
FROM_SCRATCH = (
    "--set supervision=labels --set student.transformer.init=encoder --set student.init_heads=random "
    "--set student.transformer.pairs=bi-encoder"  # as the teacher, and so the other student, reads them
)
STEPS = (
    (
        "teacher: a pretrained encoder is fine-tuned on three tasks, with 500 labelled rows each",
        f"refine --encoder minilm --set max_length=48 --epochs {{refine}} --lr 2e-4 {PRECISION} "
        "--seed {seed} --out {out}/teacher",
    ),
    (
        "control: three layers of the pretrained encoder learn from labels, in as many steps",
        f"{STUDENT} {FROM_SCRATCH} --out {{out}}/labels",
    ),
    (
        "distilled: three layers of the teacher learn from the teacher, also on rows without labels",
        f"{STUDENT} --teacher {{out}}/teacher {{unlabelled}} --out {{out}}/distilled",
    ),
)
FINETUNE = (
    "finetune --model {out}/distilled --task {task} --epochs 1 --batch 32 --set learning_rates=[5e-5] "
    f"{PRECISION} --seed {{seed}} --out {{out}}/finetuned/{{task}}"
)
FULL = {"refine": 3, "steps": 320, "unlabelled_limit": 1207}
TINY = {"refine": 1, "steps": 6, "unlabelled_limit": 32}


@click.command()
@click.option(
    "--out", default="runs/demo", show_default=True, type=click.Path(path_type=Path), help="output directory"
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="random seed")
@click.option("--overwrite", is_flag=True, help="start over instead of resuming the last demo")
@click.option(
    "--tiny",
    is_flag=True,
    help="two tasks and a few rows: shows the steps in about a minute, but learns little",
)
@quiet_option
def demo(out: Path, seed: int, overwrite: bool, tiny: bool) -> None:
    """Refine, distil, fine-tune and measure on the pocket tasks, in about 5 minutes on 2 cores.

    `demo.json` in the output directory has the scores (0 to 1), the gain with its interval, and the run time.
    """
    started = time.monotonic()
    names = TASKS[:2] if tiny else TASKS
    values: dict[str, Any] = dict(TINY if tiny else FULL)
    rows = " --data pocket" + (" --limit 64 --eval-limit 32" if tiny else "")
    unlabelled = [f"--unlabelled {name}=unlabelled" for name in names]
    unlabelled.append(f"--unlabelled-limit {values['unlabelled_limit']}")
    values |= {"out": out, "seed": seed, "unlabelled": " ".join(unlabelled)}
    seconds: dict[str, float] = {}
    for title, command in STEPS:
        line = f"{command.format(**values)} --tasks {','.join(names)}{rows}"
        seconds[title.split(":")[0]] = _step(f"{len(seconds) + 1}. {title}", line, overwrite)
    begin = time.monotonic()
    for name in names:
        line = FINETUNE.format(**values, task=name) + rows
        _step(f"4. fine-tuned: the distilled student, on the labels of {name}", line, overwrite)
    seconds["fine-tuned"] = time.monotonic() - begin
    scores = _scores(out, names)
    gain = _gain(out, names)
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
    taken = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if name != "total")
    say(f"the demo took {seconds['total']:.0f} s ({taken}); everything is in {out}")


def _step(title: str, line: str, overwrite: bool) -> float:
    """Print and run one command; returns its seconds."""
    from mtkd.cli.main import cli

    say(f"\n== {title}\n$ mtkd {line}")
    started = time.monotonic()
    cli.main(shlex.split(line + (" --overwrite" if overwrite else "")), standalone_mode=False)
    return time.monotonic() - started


def _scores(out: Path, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Task (or "average") -> the score of the best constant answer, the teacher, and each student."""
    runs = {name: read_json(out / name / "run.json")["scores"] for name in ("teacher", "labels", "distilled")}
    found = {}
    for task in names:
        key = f"{task}/validation"
        found[task] = {"majority": runs["teacher"][key]["majority"]}
        found[task] |= {name: scores[key]["primary"] for name, scores in runs.items()}
        tuned = read_json(out / "finetuned" / task / "run.json")["scores"]
        found[task]["finetuned"] = tuned[key]["primary"]
    columns = list(found[names[0]])
    average = {name: sum(scores[name] for scores in found.values()) / len(names) for name in columns}
    return found | {"average": average}


def _gain(out: Path, names: tuple[str, ...]) -> Any:
    """The paired difference between the distilled student and the one that learned from labels alone."""
    from mtkd.evaluation.differences import AVERAGE, differences_by_task, sample_scores
    from mtkd.evaluation.scoring import read_predictions
    from mtkd.training.run_directory import PREDICTIONS
    from tasks.task_names import resolve

    runs = [read_predictions(out / name / PREDICTIONS) for name in ("distilled", "labels")]
    pairs = {task.name: sample_scores(task, [{0: run[task.name]} for run in runs]) for task in resolve(names)}
    distilled, labels = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
    return differences_by_task(distilled, labels)[AVERAGE]


def _bench(out: Path, batch: int) -> tuple[float, float]:
    """Time teacher and student in turn; returns the student's speed and weights relative to the teacher's."""
    from mtkd.cli.measure import BENCH_COLUMNS, bench_row
    from mtkd.evaluation.inference_bench import BenchSettings, bench_inference

    models = {"teacher": out / "teacher", "distilled student": out / "distilled"}
    results = bench_inference(models, BenchSettings(seq_len=48, batch=batch, rounds=5, warmup=1))
    table(BENCH_COLUMNS, [bench_row(result) for result in results], f"Inference, {batch} rows of 48 tokens")
    teacher, student = (result.parameters.without_embeddings for result in results)
    return results[1].speed, student / teacher


def _report(scores: Mapping[str, Mapping[str, float]], gain: Any, speed: float, size: float) -> None:
    columns = (
        "task",
        "best constant answer",
        "teacher",
        "control (labels only)",
        "distilled",
        "then fine-tuned",
    )
    rows = [(name, *(f"{value:.3f}" for value in line.values())) for name, line in scores.items()]
    table(columns, rows, "Scores on validation rows")
    average = scores["average"]
    points = [f"{100 * value:+.1f}" for value in (gain.difference, gain.low, gain.high)]
    print(
        f"Learning from the teacher instead of labels makes a difference of {points[0]} points "
        f"(95% interval {points[1]} to {points[2]}) in the same number of steps."
    )
    if (gained := average["teacher"] - average["majority"]) > 0:
        kept = (average["distilled"] - average["majority"]) / gained
        print(f"The distilled student keeps {kept:.0%} of what the teacher gains over a constant answer.")
    else:
        print("The teacher is no better than a constant answer: it has learned too little to teach.")
    print(
        f"The student has {size:.0%} of the teacher's weights (without embeddings) and {speed:.1f} times the "
        "teacher's speed."
    )
