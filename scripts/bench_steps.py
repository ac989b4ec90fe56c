"""Measure the rows per second and core of each step, and the cost of a billion rows.

Each command runs twice in one thread, with few rows and with many. The difference of their processor times,
including child processes, is divided by the difference in rows, so start-up time is not counted. First, a
teacher from the default encoder and a student of three layers are trained for a few steps.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pyarrow.parquet as pq

BILLION = 1e9
SMALL = ("--limit", "64", "--eval-limit", "16", "--steps", "2", "--batch", "16", "--quiet")


def processor_seconds(home: Path, *words: str) -> float:
    """The processor time of an mtkd command and its children, in seconds."""
    command = [sys.executable, "-m", "mtkd.cli.main", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=home, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(words)}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read_column(file: Path, column: str) -> list[str]:
    """The texts of a column of a parquet file."""
    return list(pq.read_table(file, columns=[column])[column].to_pylist())


def steps(data: Path) -> dict[str, tuple[int, int, str]]:
    """Step -> a small and a large number of rows, and the command, with placeholders for the number."""
    sst2 = f"--data {data} --tasks sst2"
    copies = f"{sst2} --limit {{twentieth}} --copies 20"
    predict = "--task sst2 --in rows-{rows}.jsonl"
    by_name = {
        "augment mask, copies": (40_000, 1_200_000, f"augment mask {copies}"),
        "augment replace, copies": (40_000, 1_200_000, f"augment replace {copies} --tagger none"),
        "questions by rules, paragraphs": (
            300,
            3000,
            "augment questions generate --text texts-{rows}.txt --per-paragraph 3",
        ),
        "predict, teacher of 6 layers, fp32": (200, 2000, f"predict --model teacher {predict}"),
        "predict, student of 3 layers, fp32": (500, 5000, f"predict --model student {predict}"),
    }
    for precision in ("fp32", "bf16"):
        by_name[f"store build, {precision}"] = (
            200,
            1200,
            f"store build --recipe hsk-tinybert-4 --teacher teacher {sst2} --limit {{rows}} "
            f"--precision {precision}",
        )
        by_name[f"distill layerwise-3, {precision}"] = (
            640,
            2560,
            f"distill layerwise-3 {sst2} --teacher teacher --limit 4096 --eval-limit 16 --steps {{steps}} "
            f"--batch 32 --set train.precision={precision} --set teacher.precision={precision}",
        )
    return by_name


@click.command(help=__doc__)
@click.argument("data", type=click.Path(path_type=Path, exists=True))
@click.option("--only", multiple=True, metavar="TEXT", help="Only the steps whose name contains this text.")
@click.option("--rounds", default=2, show_default=True)
def main(data: Path, only: tuple[str, ...], rounds: int) -> None:
    data = data.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        sst2 = ("--data", str(data), "--tasks", "sst2")
        processor_seconds(home, "refine", *sst2, "--encoder", "minilm", *SMALL, "--out", "teacher")
        processor_seconds(
            home, "distill", "layerwise-3", *sst2, "--teacher", "teacher", *SMALL, "--out", "student"
        )
        sentences = read_column(data / "glue/sst2/train.parquet", "sentence")
        paragraphs = read_column(data / "wiki/paragraphs.parquet", "text")
        print(f"{'step':36}{'rows/s per core':>17}{'spread':>26}{'core-hours per 10^9 rows':>27}")
        for name, (few, many, command) in steps(data).items():
            if only and not any(text in name for text in only):
                continue
            for rows in (few, many):
                lines = [json.dumps({"sentence": text}) for text in sentences[:rows]]
                (home / f"rows-{rows}.jsonl").write_text("\n".join(lines))
                lines = [" ".join(text.split()) for text in paragraphs[:rows]]
                (home / f"texts-{rows}.txt").write_text("\n".join(lines))
            rates = []
            for _ in range(rounds):
                seconds = []
                for rows in (few, many):
                    words = command.format(rows=rows, steps=rows // 32, twentieth=rows // 20).split()
                    out = "out.jsonl" if words[0] == "predict" else "out"
                    seconds.append(processor_seconds(home, *words, "--out", out, "--quiet"))
                    shutil.rmtree(home / out) if (home / out).is_dir() else (home / out).unlink()
                rates.append((many - few) / (seconds[1] - seconds[0]))
            rate = sum(rates) / len(rates)
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            print(f"{name:36}{rate:17,.0f}{spread:>26}{BILLION / rate / 3600:27,.1f}", flush=True)


if __name__ == "__main__":
    main()
