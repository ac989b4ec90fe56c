"""Fine-tuning a T5 to generate questions: its batches and loss for the training loop, and the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from augment.questions.generator import RECORD, Reading, digest_generator, load_generator
from augment.questions.prompt_formats import check_prompt_vocabulary
from augment.questions.training.config import FROM_SCRATCH, GeneratorTrainingConfig
from augment.questions.training.from_scratch import new_model, train_tokenizer
from augment.questions.training.prompts import (
    EncodedPrompt,
    ReferenceQuestions,
    encode,
    prompt_batches,
    read_reference_questions,
)
from augment.questions.training.score_generator import GeneratorScores, Sample, score_generator
from augment.questions.training.sequence_loss import batch_loss
from mtkd.models.saved_model import MODEL_FILES
from mtkd.output_files.output_directory import OutputKind, open_directory
from mtkd.torch_state import trains
from mtkd.train_settings import TrainSettings
from mtkd.training.checkpoint import Position
from mtkd.training.loop import TrainingLoop
from mtkd.training.optimizers import linear_rate
from mtkd.training.processes import make_accelerator
from mtkd.training.run_directory import LOOP_FILES
from mtkd.training.step_plan import StepPlan
from tasks.common.digests import damaged_files, write_digests
from tasks.common.errors import UserError
from tasks.common.files import staged_directory
from tasks.common.hub_loading import quiet_transformers
from tasks.common.records import read_record, write_record
from tasks.common.sha256 import digest_bytes
from tasks.data.sources import DataSource
from tasks.task import Task

_WORK = "unfinished"  # folder of the new vocabulary until the model is written
_EVERY = 50  # steps per logged loss


def _read_key(directory: Path) -> str | None:
    """The key of the finished run in a directory."""
    record = read_record(directory / RECORD, object) if (directory / RECORD).is_file() else None
    return record.get("key") if isinstance(record, dict) and {"reading", "job"} <= record.keys() else None


GENERATOR_KIND = OutputKind(
    "question generator",
    RECORD,
    (
        rf"{RECORD}|({_WORK}/tokenizer/)?{MODEL_FILES}",
        r"ctranslate2-int8-[0-9a-f]{16}/model/[^/]+",
        *LOOP_FILES,
    ),
    _read_key,
    work=(rf"({_WORK}|checkpoints)(/.+)?",),
)


@dataclass(frozen=True)
class GeneratorReport:
    """The report of a training run, which is also the record saved with the model.

    Attributes:
        reading: the input format and limits, for `mtkd augment questions generate`.
        job: the configuration of the run.
        key: a digest of the configuration and the data.
        losses: the mean training loss of every 50 steps.
    """

    reading: Reading
    job: GeneratorTrainingConfig
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


@trains
def train_generator(
    config: GeneratorTrainingConfig, source: DataSource, task: Task, place: TrainingPlace
) -> dict[str, Any]:
    """Train a generator in `place.out`, or resume an interrupted run there.

    Returns:
        the report as JSON; if the run had already finished, its existing report.

    Raises:
        UserError: the data, the model or the directory cannot be used; nothing is written in that case.
        UserError, Interrupted: see `TrainingLoop.fit`.
    """
    accelerator = make_accelerator(str(place.device))
    form = config.reading.format
    references = read_reference_questions(
        source, task, task.train or "train", form, config.limit, config.seed
    )
    if not task.validation:
        raise UserError(f"task {task.name!r} has no validation split for scoring")
    held_out = read_reference_questions(
        source, task, task.validation[0], form, config.eval_limit, config.seed
    )
    if config.model == FROM_SCRATCH:
        generator, digest = None, ""
    else:
        generator = load_generator(config.model, **dataclasses.asdict(config.reading))
        digest = digest_generator(generator)
    key = _key(config, digest, [*references, *held_out])
    with open_directory(place.out, GENERATOR_KIND, key, overwrite=place.overwrite):
        if (place.out / RECORD).is_file():
            return read_record(place.out / RECORD, GeneratorReport).to_json()
        model, tokenizer = (
            (generator.model, generator.tokenizer)
            if generator
            else _create_model(config, references, place.out / _WORK)
        )
        check_prompt_vocabulary(tokenizer, model.config, form)
        model.to(place.device)
        encoded = encode(tokenizer, references, config.reading.max_input, config.reading.max_output)
        pad = tokenizer.pad_token_id
        result = _Training(accelerator, config, model, encoded, pad, task.name, place).fit()
        scores, samples = score_generator(model, tokenizer, held_out, config.reading)
        report = GeneratorReport(
            reading=config.reading,
            job=config,
            key=key,
            data=source.name,
            task=task.name,
            version=place.version,
            command=place.command,
            steps=result.steps,
            losses=[round(sums["loss"] / sums["steps"], 4) for sums in result.history],
            scores=scores,
            samples=samples,
        )
        _finish(place.out, model, tokenizer, report)
    return report.to_json()


def _key(config: GeneratorTrainingConfig, model: str, references: list[ReferenceQuestions]) -> str:
    """A digest of everything that affects the outcome; a model that has a digest may have any name."""
    settings = json.dumps(dataclasses.asdict(config) | ({"model": ""} if model else {}), sort_keys=True)
    texts = (part for reference in references for part in (reference.prompt, *reference.questions))
    return digest_bytes(settings, model, *texts)


def _create_model(
    config: GeneratorTrainingConfig, references: list[ReferenceQuestions], work: Path
) -> tuple[Any, Any]:
    """Create a new model and its tokeniser, before the first step.

    Raises:
        UserError: the tokeniser of an interrupted run is damaged.
    """
    from transformers import AutoTokenizer

    directory = work / "tokenizer"
    if not (directory / "tokenizer_config.json").is_file():
        texts = dict.fromkeys(reference.context for reference in references)
        questions = (question for reference in references for question in reference.questions)
        fixed_words = [config.reading.format.fixed_words] * 100
        tokenizer = train_tokenizer(
            [*texts, *questions, *fixed_words], config.shape, config.reading.max_input
        )
        with staged_directory(directory, "tokenizer_config.json") as staged:
            tokenizer.save_pretrained(staged)
            write_digests(staged)
    if damaged := damaged_files(directory):
        raise UserError(
            f"{directory / damaged[0]} is missing or damaged", hint="start over with `overwrite=True`"
        )
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    return new_model(tokenizer, config.shape, config.seed), tokenizer


class _Training(TrainingLoop[list[int]]):
    """Trains a generator on batches of prompts; the history holds the sum of the losses of every 50 steps."""

    divergence_hint = "a lower learning rate (`lr=...`)"

    def __init__(
        self,
        accelerator: Accelerator,
        config: GeneratorTrainingConfig,
        model: Any,
        encoded: list[EncodedPrompt],
        pad: int,
        task: str,
        place: TrainingPlace,
    ):
        self._config = config
        self._encoded = encoded
        self._pad = pad
        self._task = task
        epochs = range(0 if config.steps else config.epochs)
        total = config.steps or sum(sum(1 for _ in self._epoch_batches(epoch)) for epoch in epochs)
        self._warm = max(1, int(config.warmup * total))
        settings = TrainSettings(
            max_grad_norm=config.max_grad_norm, seed=config.seed, checkpoint_steps=place.save_every
        )
        super().__init__(accelerator, model, config.optimizer(model), settings, total, place.out)

    def _epoch_batches(self, epoch: int) -> Iterator[list[int]]:
        return prompt_batches(self._encoded, self._config.batch_size, self._config.seed, epoch)

    def batches_from(self, position: Position, limit: int) -> AbstractContextManager[Iterator[list[int]]]:
        batches = self._epoch_batches(position.epoch)
        return nullcontext(islice(batches, position.batch, position.batch + limit))

    def plan(self, rows: list[int]) -> StepPlan:
        return StepPlan(self._task, [lambda: self._loss(rows)])

    def _loss(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        prompts = [self._encoded[n] for n in rows]
        loss = batch_loss(self.train_module, prompts, self._pad, self._config.precision)
        return loss, loss.new_zeros(0)

    def learning_rate(self) -> float:
        return self._config.rate * linear_rate(1.0, self.position.step, self.total, self._warm, self._warm)

    def dropout_seed(self, micro_batch: int) -> int:
        # Each step has a single micro-batch; another formula would change the generators that are trained.
        return (self._config.seed * 1_000_003 + self.position.step) % 2**63

    def step(self, rows: list[int]) -> float:
        loss, history = super().step(rows), self.position.history
        if self.position.step % _EVERY == 0:
            history.append({"loss": 0.0, "steps": 0})
        history[-1] = {"loss": history[-1]["loss"] + loss, "steps": history[-1]["steps"] + 1}
        return loss


def _finish(out: Path, model: Any, tokenizer: Any, report: GeneratorReport) -> None:
    """Write the model, the tokeniser and finally the record."""
    with staged_directory(out, RECORD) as staged, quiet_transformers():
        model.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        write_digests(staged)
        write_record(staged / RECORD, report.to_json())
