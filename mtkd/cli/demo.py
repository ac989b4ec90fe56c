"""`mtkd demo`: the main job on the pocket tasks, by the same commands that a user types."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import click

from mtkd.cli.options import quiet_option, say, table
from tasks.files import read_json

TASKS = "glue"
# A student small enough for two cores: a quarter of the paper's LSTM width, the teacher's embeddings.
SMALL = (
    "--set student.bilstm.hidden_size=64 --set student.bilstm.projection_size=128 "
    "--set student.bilstm.output_size=128 --set student.head_hidden=64 --set student.embeddings=teacher "
    "--set student.max_length=48 --set train.lr=2e-3 --batch 64"
)
DISTILL = "distill mkd-lstm --teacher {out}/teacher " + SMALL
STEPS = (
    (
        "a pretrained encoder is fine-tuned on nine tasks: the teacher",
        "refine --teacher minilm --epochs {refine} --set train.lr=1e-4 --out {out}/teacher",
    ),
    (
        "augmentation: masked copies of every row, without labels",
        "augment mask --copies {copies} --out {out}/corpus",
    ),
    (
        "for comparison: the same student trained on labels alone",
        DISTILL + " --set supervision=labels --epochs {labels} --out {out}/labels",
    ),
    (
        "one student for all tasks learns from the teacher",
        DISTILL + " --corpus {out}/corpus --epochs {distill} --out {out}/student",
    ),
)
FINETUNE = (
    "finetune --model {out}/student --task {task} --epochs 2 --batch 32 "
    "--set learning_rates=[1e-4,5e-4] --out {out}/finetuned/{task}"
)
EPOCHS = {"refine": 3, "labels": 12, "distill": 5, "copies": 2}


@click.command()
@click.option("--out", default="runs/demo", type=click.Path(path_type=Path), help="output directory")
@click.option("--overwrite", is_flag=True, help="start over instead of resuming the last demo")
@click.option(
    "--tiny",
    is_flag=True,
    help="two tasks and a few rows: shows the steps in about a minute, but learns little",
)
@quiet_option
def demo(out: Path, overwrite: bool, tiny: bool) -> None:
    """Refine, augment, distil, fine-tune and measure on the pocket tasks, in under 10 minutes on 2 cores."""
    from tasks.task_names import resolve

    started = time.monotonic()
    spec = "sst2,rte" if tiny else TASKS
    more = " --limit 48 --eval-limit 32" if tiny else ""
    seconds: dict[str, float] = {}
    for number, (title, command) in enumerate(STEPS, 1):
        numbers = dict.fromkeys(EPOCHS, 1) if tiny else EPOCHS
        line = command.format(out=out, **numbers) + f" --data pocket --tasks {spec}"
        line += more if "augment" not in line else more.split(" --eval")[0]
        seconds[line.split()[0] + str(number)] = _step(f"{number}. {title}", line, overwrite)
    names = [task.name for task in resolve(spec)]
    begin = time.monotonic()
    for name in names:
        _step(
            f"5. {name}: fine-tune the student",
            FINETUNE.format(out=out, task=name) + f" --data pocket{more}",
            overwrite,
        )
    seconds["finetune"] = time.monotonic() - begin
    _results(out, names)
    _bench(out, *((8, 2) if tiny else (64, 5)))
    taken = ", ".join(f"{name.rstrip('1234')} {value:.0f} s" for name, value in seconds.items())
    say(f"the demo took {time.monotonic() - started:.0f} s ({taken}); everything is in {out}")


def _step(title: str, line: str, overwrite: bool) -> float:
    """Print and run one command; returns its seconds."""
    from mtkd.cli.main import cli

    say(f"\n== {title}\n$ mtkd {line}")
    started = time.monotonic()
    cli.main(shlex.split(line + (" --overwrite" if overwrite else "")), standalone_mode=False)
    return time.monotonic() - started


def _results(out: Path, names: list[str]) -> None:
    """Print the scores per task: baseline, teacher, student on labels alone, distilled, and fine-tuned."""
    runs = {name: read_json(out / name / "run.json")["scores"] for name in ("teacher", "labels", "student")}
    values = []
    for name in names:
        tuned = read_json(out / "finetuned" / name / "run.json")["scores"]
        found = [_mean(scores, name) for scores in (*runs.values(), tuned)]
        values.append([_mean(runs["teacher"], name, "majority"), *found])
    values.append([sum(column) / len(names) for column in zip(*values, strict=True)])
    columns = (
        "task",
        "majority-class or mean baseline",
        "teacher",
        "student, labels alone",
        "distilled",
        "then fine-tuned",
    )
    rows = [
        (name, *(f"{value:.3f}" for value in line))
        for name, line in zip([*names, "mean"], values, strict=True)
    ]
    table(columns, rows, "Scores on validation rows")


def _mean(scores: dict[str, Any], task: str, what: str = "primary") -> float:
    values = [s[what] for s in scores.values() if s["task"] == task]
    return sum(values) / len(values)


def _bench(out: Path, batch: int, rounds: int) -> None:
    """Print what teacher and student cost to run, timed in turn."""
    from mtkd.cli.measure import BENCH_COLUMNS, bench_row
    from mtkd.evaluation.inference_bench import BenchSettings, bench_inference

    models = {"teacher": out / "teacher", "student": out / "student"}
    results = bench_inference(models, BenchSettings(seq_len=64, batch=batch, rounds=rounds, warmup=1))
    table(BENCH_COLUMNS, [bench_row(result) for result in results], f"Inference, {batch} rows of 64 tokens")
