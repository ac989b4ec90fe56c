"""Fine-tune: one task's labels on a shared model; the learning rate is picked by validation loss."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mtkd.jobs.common import (
    Request,
    begin,
    check_metric,
    encode_validation,
    evaluator,
    scores_record,
)
from mtkd.jobs.training_data import TrainingData, load_training_data, trainable_tasks
from mtkd.losses.objective import labels_objective
from mtkd.models.multitask import MultiTaskModel, digest_model
from mtkd.models.parameter_count import count_parameters
from mtkd.settings import FinetuneSettings
from mtkd.training.batches import TaskBatches
from mtkd.training.run_directory import RunDirectory
from mtkd.training.trainer import Trainer, make_accelerator
from tasks.batching import Collator, Encoded
from tasks.errors import UserError
from tasks.files import read_json, write_json


def run(
    request: Request,
    settings: FinetuneSettings,
    model: Path,
    warn: Callable[[str], None] = lambda text: None,
) -> RunDirectory:
    """Fine-tune `model` on one task, once for each learning rate, and keep the best by validation loss.

    Args:
        model: directory of a trained model; a task it does not know gets a fresh head.
        warn: called with each warning, before training starts.

    Returns:
        the finished run; its record holds the validation scores of every rate.

    Raises:
        UserError: anything wrong with data, model or settings, before anything is written.
    """
    tasks = trainable_tasks(request.tasks)
    if len(tasks) != 1:
        raise UserError(f"--task {request.tasks!r} names {len(tasks)} tasks", expected="one task")
    check_metric(settings.train.metric, tasks)
    run = request.open_run("finetune", settings, tasks, model=str(model))
    accelerator = make_accelerator(settings.train)
    data = load_training_data(request, tasks)
    inputs = {"data": data.digests, "model": digest_model(model)}
    run.check_inputs(**inputs)
    if run.finished:
        return run
    start = MultiTaskModel.load(model)
    start.require([task for task in tasks if task.head in start.tasks], f"the model {model}")
    data = data.as_read(start.reader)
    start.keep(tasks)
    for text in data.lost if accelerator.is_main_process else ():
        warn(text)
    begin(run, accelerator, **inputs, rows=data.summary(), parameters=count_parameters(start).to_json())
    rates = list(dict.fromkeys(settings.learning_rates))
    results = [_one_rate(request.out, settings, model, data, accelerator, rate) for rate in rates]
    best = min(range(len(rates)), key=lambda index: results[index]["loss"])
    if accelerator.is_main_process:
        MultiTaskModel.load(_place(request.out, rates[best])).save(request.out / "model")
        for kept in ("log.jsonl", "tensorboard"):
            _keep(_place(request.out, rates[best]) / kept, request.out / kept)
        run.finish(
            scores=results[best]["scores"],
            learning_rate=rates[best],
            tried={f"{rate:g}": result["loss"] for rate, result in zip(rates, results, strict=True)},
            training=results[best]["training"],
        )
        for rate in rates:
            shutil.rmtree(_place(request.out, rate), ignore_errors=True)
    accelerator.wait_for_everyone()
    return run


def _keep(source: Path, target: Path) -> None:
    """Move a file or directory to where an earlier start may have moved it already."""
    if source.exists():
        shutil.rmtree(target, ignore_errors=True)
        os.replace(source, target)


def _place(out: Path, rate: float) -> Path:
    return out / f"lr-{rate:g}"


def _one_rate(
    out: Path,
    settings: FinetuneSettings,
    start: Path,
    data: TrainingData,
    accelerator: Accelerator,
    rate: float,
) -> dict[str, Any]:
    """Train with one learning rate, or read what an earlier start of this run found; "loss" and "scores"."""
    place = _place(out, rate)
    if (place / "result.json").is_file():
        return read_json(place / "result.json")
    train = settings.train.model_copy(update={"lr": rate})
    model = MultiTaskModel.load(start)
    torch.manual_seed(train.seed)
    model.keep(data.tasks.values())
    reader = model.reader
    encoded = {part.task.name: Encoded.encode(part.train, reader.tokeniser) for part in data.parts}
    evaluate = evaluator(
        data.tasks, encode_validation(data.validation, reader), accelerator, train.eval_batch_size
    )
    trainer = Trainer(
        accelerator,
        model,
        labels_objective(),
        TaskBatches(data.tasks, encoded, Collator(reader), train),
        train,
        place,
        evaluate=evaluate,
        label=f"fine-tuning at lr {rate:g}",
    )
    outcome = trainer.fit()
    scores = evaluate(model)
    result: dict[str, Any] = {
        "loss": sum(s.loss for s in scores) / len(scores),
        "scores": scores_record(scores),
        "training": vars(outcome),
    }
    if accelerator.is_main_process:
        model.info.scores = result["scores"]
        model.save(place / "model")
        write_json(place / "result.json", result)
    accelerator.wait_for_everyone()
    return result
