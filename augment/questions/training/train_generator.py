"""Fine-tuning a T5 to generate questions: the resumable training loop and the report."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augment.questions.generator import RECORD, Reading, digest_generator, load_generator
from augment.questions.prompt_formats import check_vocabulary
from augment.questions.training.from_scratch import NewModelShape, new_model, train_tokenizer
from augment.questions.training.prompts import Asked, EncodedPrompt, encode, prompt_batches, read_asked
from augment.questions.training.score_generator import GeneratorScores, Sample, evaluate
from augment.questions.training.sequence_loss import batch_loss
from mtkd.storage.output_directory import OutputKind, open_directory
from mtkd.training.checkpoint import Position, restore_checkpoint, save_checkpoint
from mtkd.training.optimizers import OPTIMIZERS, linear_rate, set_learning_rate
from tasks.errors import UserError
from tasks.files import digest_bytes, drop_directory, read_json, write_json
from tasks.progress import progress
from tasks.sources import DataSource
from tasks.task import Task

FROM_SCRATCH = "fresh"
_WORK = "unfinished"  # folder of checkpoints and the new vocabulary until the model is written
_EVERY = 50  # steps per logged loss


def _read_key(directory: Path) -> str | None:
    """The key of the finished or unfinished run in a directory."""
    for path in (directory / RECORD, directory / _WORK / "run.json"):
        if path.is_file():
            record = read_json(path)
            return record.get("key") if isinstance(record, dict) else None
    return None


GENERATOR_KIND = OutputKind(
    "question generator",
    RECORD,
    (r"[^/]+\.(json|safetensors|model|jinja)", r"ctranslate2-int8-.+", rf"{_WORK}/.+"),
    _read_key,
)


@dataclass(frozen=True)
class TrainJob:
    """Everything that affects the outcome of a training run.

    Attributes:
        model: directory or hub name of a T5, or "fresh" for a new one of `shape`.
        reading: the prompt format and the length limits.
        epochs: number of passes over the data; `steps`: number of steps, which overrides `epochs`.
        lr: the peak learning rate; None = 0.03 for a new model, else 3e-4. It rises linearly during the
            fraction `warmup` of the steps and then falls linearly to 0.
        batch_size: approximate number of questions per step.
        seed: for the order of the data, dropout and new weights.
        limit: number of training rows; `eval_limit`: number of held-out rows; None = all.
    """

    model: str
    reading: Reading
    shape: NewModelShape
    epochs: int = 3
    steps: int | None = None
    lr: float | None = None
    batch_size: int = 64
    warmup: float = 0.05
    clip: float = 1.0
    seed: int = 0
    precision: str = "fp32"
    limit: int | None = None
    eval_limit: int | None = 1000

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.lr or (0.03 if self.model == FROM_SCRATCH else 3e-4)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """AdamW, or Adafactor for a new model.

        The initial weights of a T5 differ in scale by two orders of magnitude, so no single step size suits
        them all; the steps of Adafactor are proportional to the weights.
        """
        if self.model == FROM_SCRATCH:
            return OPTIMIZERS["adafactor"](model.parameters(), lr=self.rate)
        return OPTIMIZERS["adamw"](model.parameters(), lr=self.rate, weight_decay=0.01)


@dataclass(frozen=True)
class GeneratorReport:
    """The report of a training run, which is also the record saved with the model.

    Attributes:
        reading: the input format and limits, for `mtkd augment questions generate`.
        key: a digest of the job and the data.
        losses: the mean training loss of every 50 steps.
    """

    reading: Reading
    job: TrainJob
    key: str
    data: str
    task: str
    version: str
    command: str
    steps: int
    losses: list[float]
    scores: GeneratorScores
    samples: list[Sample]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class TrainingPlace:
    """Where a run is written and executed: directory, device, mtkd version and command line.

    Attributes:
        overwrite: replace the output of another run; `save_every`: number of steps between checkpoints.
    """

    out: Path
    device: torch.device
    version: str
    command: str
    overwrite: bool = False
    save_every: int = 500


def train_generator(job: TrainJob, source: DataSource, task: Task, place: TrainingPlace) -> dict[str, Any]:
    """Train a generator in `place.out`, or resume an interrupted run there.

    Returns:
        the report as JSON; if the run had already finished, its existing report.

    Raises:
        UserError: the data, the model or the directory cannot be used; nothing is written in that case.
    """
    form = job.reading.format
    asked = read_asked(source, task, task.train or "train", form, job.limit, job.seed)
    held_out = [
        read_asked(source, task, split, form, job.eval_limit, job.seed) for split in task.validation[:1]
    ]
    if not held_out:
        raise UserError(f"task {task.name!r} has no validation split for scoring")
    if job.model == FROM_SCRATCH:
        job.shape.check()
        generator, digest = None, ""
    else:
        generator = load_generator(job.model, **dataclasses.asdict(job.reading))
        digest = digest_generator(generator)
    key = _key(job, digest, [*asked, *held_out[0]])
    with open_directory(place.out, GENERATOR_KIND, key, overwrite=place.overwrite):
        if (place.out / RECORD).is_file():
            finished: dict[str, Any] = read_json(place.out / RECORD)
            return finished
        write_json(place.out / _WORK / "run.json", {"key": key})
        model, tokenizer = (
            (generator.model, generator.tokenizer) if generator else _start(job, asked, place.out / _WORK)
        )
        check_vocabulary(tokenizer, model.config, form)
        model.to(place.device)
        encoded = encode(tokenizer, asked, job.reading.max_input, job.reading.max_output)
        steps, losses = _loop(job, model, encoded, tokenizer.pad_token_id, place)
        scores, samples = evaluate(model, tokenizer, held_out[0], job.reading)
        report = GeneratorReport(
            reading=job.reading,
            job=job,
            key=key,
            data=source.name,
            task=task.name,
            version=place.version,
            command=place.command,
            steps=steps,
            losses=losses,
            scores=scores,
            samples=samples,
        )
        _finish(place.out, model, tokenizer, report)
    return report.to_json()


def _key(job: TrainJob, model: str, asked: list[Asked]) -> str:
    settings = json.dumps(dataclasses.asdict(job), sort_keys=True)
    return digest_bytes(settings, model, *(part for one in asked for part in (one.prompt, *one.questions)))


def _start(job: TrainJob, asked: list[Asked], work: Path) -> tuple[Any, Any]:
    """Create a new model and its tokeniser, before the first step."""
    from transformers import AutoTokenizer

    kept = work / "tokenizer"
    if not (kept / "tokenizer_config.json").is_file():
        texts = dict.fromkeys(one.context for one in asked)
        questions = (question for one in asked for question in one.questions)
        marks = [job.reading.format.marks] * 100
        tokenizer = train_tokenizer([*texts, *questions, *marks], job.shape, job.reading.max_input)
        tokenizer.save_pretrained(kept)
    tokenizer = AutoTokenizer.from_pretrained(kept, trust_remote_code=False)
    return new_model(tokenizer, job.shape, job.seed), tokenizer


def _loop(
    job: TrainJob, model: Any, encoded: list[EncodedPrompt], pad: int, place: TrainingPlace
) -> tuple[int, list[float]]:
    """Train to the last step; returns the number of steps and the losses."""
    optimizer = job.optimizer(model)
    work = place.out / _WORK
    position = restore_checkpoint(work, model, optimizer) or Position()
    done, losses = position.step, [entry["loss"] for entry in position.history]
    total = job.steps or sum(
        sum(1 for _ in prompt_batches(encoded, job.batch_size, job.seed, epoch))
        for epoch in range(job.epochs)
    )
    warm = max(1, int(job.warmup * total))
    model.train()
    recent: list[Tensor] = []
    with progress("training", total, done=done, unit="steps") as advance:
        for step, batch in _from(_endless(job, encoded), done, total):
            set_learning_rate(optimizer, job.rate * linear_rate(1.0, step, total, warm, warm))
            torch.manual_seed(job.seed * 1_000_003 + step)
            loss = batch_loss(model, [encoded[n] for n in batch], pad, job.precision)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            optimizer.zero_grad()
            recent.append(loss.detach())
            if len(recent) == _EVERY or step + 1 == total:
                losses.append(round(float(torch.stack(recent).mean()), 4))
                recent = []
            if (step + 1) % place.save_every == 0 and step + 1 < total:
                history = [{"loss": value} for value in losses]
                save_checkpoint(work, model, optimizer, Position(step=step + 1, history=history))
            advance(1, f"loss {losses[-1]:.3f}" if losses else "")
    return total, losses


def _endless(job: TrainJob, encoded: list[EncodedPrompt]) -> Iterator[list[int]]:
    epoch = 0
    while True:
        yield from prompt_batches(encoded, job.batch_size, job.seed, epoch)
        epoch += 1


def _from(stream: Iterator[list[int]], done: int, total: int) -> Iterator[tuple[int, list[int]]]:
    for step in range(total):
        batch = next(stream)
        if step >= done:
            yield step, batch


def _finish(out: Path, model: Any, tokenizer: Any, report: GeneratorReport) -> None:
    """Write the model, the tokeniser and finally the record, then delete the checkpoints."""
    temporary = out / f".model.{os.getpid()}.tmp"
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in temporary.iterdir():
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    write_json(out / RECORD, report.to_json())
    drop_directory(out / _WORK)
