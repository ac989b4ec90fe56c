"""Benchmark the knowledge store against running the teacher, a BERT-base with random weights.

- train: training steps of the 4x312 and ROSITA6 students with batches of 16, with the teacher in memory and
  from the store at equal loss and padding, and with everything combined (store, batches grouped by length,
  bf16) compared with all hidden states computed online, by mtkd's layers and by torch's.
- build: building a store compared with only the teacher's forward pass on the same batches.
- start: seconds from starting the command to the first training step of a student.

    python scripts/bench_store.py ../shared/data
    python scripts/bench_store.py ../shared/data --part train --dropout 0
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from measuring import report

from mtkd.device import keep_memory
from mtkd.jobs.distillation import prepare as planning
from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.knowledge_store.build_store import build_store
from mtkd.jobs.knowledge_store.prepare_store import prepare_store
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data, trainable_tasks
from mtkd.knowledge_store.shard_writer import write_missing_shards
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.pretrained_config import locate as encoder_directory
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.fast_dropout import Dropout
from mtkd.models.fast_linear import Linear
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.recipes import load_settings
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.training.batches import TaskBatches
from mtkd.training.importance import measure_importance
from mtkd.training.processes import make_accelerator
from mtkd.training.trainer import Trainer
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded, length_sorted_batches
from tasks.tokens.tokeniser import Tokeniser

TASKS = "rte,mrpc,stsb,sst2"  # about 40 tokens per row on average
BERT_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
SELECTED_PART = {"terms.hidden.depth": 1, "terms.hidden.tokens": 9, "terms.hidden.width": 0.1}
TORCH_LAYERS = "online, all hidden states, padded to 128, torch's layers"
ALL_STATES = {"terms.hidden.depth": None, "terms.hidden.tokens": None, "terms.hidden.width": 1.0}


def save_teacher(directory: Path) -> None:
    """Save a BERT-base sized model with random weights and heads for the tasks."""
    torch.manual_seed(0)
    tokeniser = Tokeniser.load(encoder_directory(DEFAULT_ENCODER))
    config = TransformerConfig(hf={"model_type": "bert", "vocab_size": tokeniser.vocab_size, **BERT_BASE})
    MultiTaskModel(TransformerEncoder(config), resolve(TASKS), tokeniser, ModelInfo(128, 0)).save(directory)


def request(data: str, teacher: Path, recipe: str, rows: int) -> StoreRequest:
    """The request for a store with the selected part of the hidden states."""
    return StoreRequest(recipe, data, TASKS, str(teacher), dict(SELECTED_PART), limit=rows, batch=16)


def make_trainer(
    data: str,
    teacher: Path,
    store: Path | None,
    recipe: str,
    rows: int,
    directory: Path,
    pad: bool,
    dropout: float,
    **changes: Any,
) -> Trainer:
    """Build a trainer for the first stage of a recipe; `store=None` means the teacher is in memory."""
    fixed = {"train.batch_size": 16, "train.warmup": 0.0, "student.transformer.dropout": dropout}
    sets = {**SELECTED_PART, **fixed, **changes}
    settings = load_settings(recipe, "distill", sets)
    tasks = trainable_tasks(TASKS)
    rows_of = load_training_data(Request(data, TASKS, directory, rows, 8), tasks)
    validated = validate_run(settings, str(teacher), tasks, store)

    def importance(model: MultiTaskModel) -> Any:
        sample = {
            p.task.name: Encoded.encode(p.train, model.tokeniser).take(np.arange(8)) for p in rows_of.parts
        }
        return measure_importance(model, rows_of.tasks, sample, batch_size=8)

    prepared_run = planning.prepare_run(validated, importance=importance)
    stage, objective = validated.stages[0]
    if store:
        manifest = read_store_manifest(store)
        stored_rows = {
            part.task.name: find_stored_rows(store, manifest, part.train) for part in rows_of.parts
        }
        source: Any = StoredTeacher(store, manifest, objective.teacher_need, stored_rows)
    else:
        source = OnlineTeacher(prepared_run.teachers[0].model, objective.teacher_need)
    reader = prepared_run.student.reader
    encoded = {part.task.name: Encoded.encode(part.train, reader.tokeniser) for part in rows_of.parts}
    collate = Collator(reader, reader, pad_to=128 if pad else None)
    train = stage.train.model_copy(update={"group_by_length": not pad})
    batch_source = TaskBatches(rows_of.tasks, encoded, collate, train)
    trainer = Trainer(
        make_accelerator(),
        prepared_run.student,
        objective,
        batch_source,
        train,
        directory,
        evaluate=None,
        teacher=source,
    )
    trainer.start()
    trainer.train_module.train()
    return trainer


def use_torch_layers(*modules: torch.nn.Module) -> None:
    """Turn mtkd's linear and dropout layers into those of torch that they replace."""
    replaced: dict[type, type] = {Linear: torch.nn.Linear, Dropout: torch.nn.Dropout}
    for module in modules:
        for child in module.modules():
            child.__class__ = replaced.get(type(child), type(child))


def steps(trainer: Trainer, count: int | None, number: int) -> float:
    """Rows per second over `count` steps of an epoch, or over all of its steps."""
    rows, started = 0, time.perf_counter()
    with trainer.batches.epoch(number, 0, {}, count) as prepared:
        for batches in prepared:
            trainer.step(batches)
            trainer.position.step += 1
            rows += len(batches.drawn.indices)
    return rows / (time.perf_counter() - started)


@keep_memory()  # as every training job does
def bench_train(data: str, home: Path, rows: int, rounds: int, dropout: float) -> None:
    """Compare training steps with the teacher in memory and from the store."""
    teacher = home / "teacher"
    for recipe in ("hsk-tinybert-4", "hsk-rosita-6"):
        store = home / recipe
        build_store(request(data, teacher, recipe, rows), store, "bench")
        variants: dict[str, tuple[Trainer, int | None]] = {}
        for name, at, pad, changes, count in (
            (TORCH_LAYERS, None, True, ALL_STATES, 3),
            ("online, all hidden states, padded to 128", None, True, ALL_STATES, 3),
            ("online, selected part, padded to 128", None, True, {}, 3),
            ("store, selected part, padded to 128", store, True, {}, 12),
            ("store, grouped by length", store, False, {}, None),
            ("store, grouped by length, bf16", store, False, {"train.precision": "bf16"}, None),
        ):
            directory = home / f"{recipe}-{len(variants)}"
            variants[name] = (
                make_trainer(data, teacher, at, recipe, rows, directory, pad, dropout, **changes),
                count,
            )
        plain: Any = variants[TORCH_LAYERS][0]
        use_torch_layers(plain.train_module, plain.teacher.model)
        speeds: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds + 1):
            for name, (trainer, count) in variants.items():
                speed = steps(trainer, count if number else 2, number)
                if number:
                    speeds[name].append(speed)
        print(f"train {recipe}: batches of 16, {rows} rows per task, dropout {dropout}")
        for base in list(variants)[:3]:
            for name, rates in speeds.items():
                report(name, base, rates, speeds[base], "rows/s")


def bench_build(data: str, home: Path, rows: int, rounds: int) -> None:
    """Compare building a store with only the teacher's forward pass."""
    prepared = prepare_store(request(data, home / "teacher", "hsk-tinybert-4", rows))
    spec = prepared.spec
    accelerator = make_accelerator()
    collate = Collator(spec.teacher.reader)
    fp32_rates: list[float] = []
    for precision in ("fp32", "bf16"):
        built, plain = [], []
        for number in range(rounds):
            out = home / f"built-{precision}-{number}"
            started = time.perf_counter()
            write_missing_shards(replace(spec, precision=precision), out, accelerator, {})
            built.append(rows * len(spec.tasks) / (time.perf_counter() - started))
            started = time.perf_counter()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                for shard in spec.shards:
                    encoded = spec.data[shard.task].take(np.asarray(shard.rows))
                    lengths = collate.reader.lengths(encoded.texts)
                    for numbers in length_sorted_batches(lengths, spec.batch_size):
                        batch = collate(encoded, numbers)
                        spec.teacher(batch.inputs, shard.task)
            plain.append(rows * len(spec.tasks) / (time.perf_counter() - started))
        fp32_rates = fp32_rates or plain
        print(f"build in {precision}: {rows} rows per task")
        report("forward pass only", "forward pass only", plain, plain, "rows/s")
        report("store build", "forward pass only", built, plain, "rows/s")
        report("store build", "forward pass only, fp32", built, fp32_rates, "rows/s")


def bench_start(data: str, home: Path, rows: int, rounds: int) -> None:
    """Measure the seconds from starting the command to the first training step."""
    store = home / "hsk-tinybert-4"
    if not store.exists():
        build_store(request(data, home / "teacher", "hsk-tinybert-4", rows), store, "bench")
    seconds = []
    for number in range(rounds):
        out = home / f"start-{number}"
        words = ["distill", "hsk-tinybert-4", "--store", str(store), "--data", data, "--tasks", TASKS]
        words += ["--limit", str(rows), "--eval-limit", "64", "--steps", "1", "--out", str(out)]
        started = time.time()
        subprocess.run(
            [sys.executable, "-m", "mtkd.cli.main", *words], check=True, capture_output=True, env=os.environ
        )
        first = out / "stages" / "hidden" / "log.jsonl"
        assert json.loads(first.read_text().splitlines()[0])["step"] == 1
        seconds.append(first.stat().st_mtime - started)
    lowest, highest = min(seconds), max(seconds)
    print(f"start: first step after {statistics.median(seconds):.1f} s ({lowest:.1f} to {highest:.1f})")


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("data")
@click.option("--part", "parts", type=click.Choice(["train", "build", "start"]), multiple=True)
@click.option("--rows", default=128, show_default=True, help="rows per task")
@click.option("--rounds", default=3, show_default=True)
@click.option("--dropout", default=0.1, show_default=True, help="dropout of the students in part `train`")
def main(data: str, parts: tuple[str, ...], rows: int, rounds: int, dropout: float) -> None:
    """Print speeds and ratios."""
    chosen = parts or ("train", "build", "start")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        save_teacher(home / "teacher")
        if "train" in chosen:
            bench_train(data, home, rows, rounds, dropout)
        if "build" in chosen:
            bench_build(data, home, rows, rounds)
        if "start" in chosen:
            bench_start(data, home, rows, rounds)


if __name__ == "__main__":
    main()
