"""Refine: fine-tune a pretrained encoder on all tasks to make a multi-task teacher (MKD section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mtkd.jobs.class_weights import check_class_weights, weigh_classes
from mtkd.jobs.request import Request, refuse_unlabelled_settings
from mtkd.jobs.training_data import EncodedRows, load_training_data, trainable_tasks
from mtkd.jobs.training_job import JobResult, TrainingJob, Warn, ignore_warning
from mtkd.jobs.validation_scores import check_metric, evaluator
from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.bi_encoders import bi_encoder_for, can_be_bi_encoder, compares_sentences
from mtkd.models.encoders.pretrained_config import PairEncoding, digest_encoder, locate, pretrained_config
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.precision import resolve_precision
from mtkd.settings import RefineSettings
from mtkd.torch_state import trains
from mtkd.train_settings import FEW_ROWS
from mtkd.training.batches import TaskBatches
from mtkd.training.callbacks import Callback
from mtkd.training.linear_probe import fit_linear_heads, probe_nearly_suffices, probed_tasks
from mtkd.training.run_directory import RunDirectory
from mtkd.training.trainer import Trainer
from tasks.common.errors import UserError
from tasks.tokens.batching import Collator
from tasks.tokens.tokeniser import Tokeniser

# What lr = "auto" means: if `probe_nearly_suffices`, and otherwise.
_REFINE_PROBE_LR, _REFINE_LR = 2e-5, 5e-5


@trains
def refine(
    request: Request,
    settings: RefineSettings,
    encoder: str,
    *,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Fine-tune a pretrained encoder on all tasks of the request, which makes it a multi-task teacher.

    Args:
        encoder: hub name or directory of a pretrained encoder, or `minilm`.
        callbacks: called during training.
        warn: called with each warning: before training, and about the scores after it.

    Returns:
        The finished run.

    Raises:
        UserError: invalid data, encoder or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    settings = resolve_precision(settings, request.device, warn)
    tasks = trainable_tasks(request.tasks, request.data)
    check_metric(settings.train.metric, tasks)
    refuse_unlabelled_settings(settings.train, "mtkd refine")
    check_class_weights(settings.train, tasks, labels_objective())
    return _Refine(
        request=request,
        settings=settings,
        tasks=tasks,
        sources={"encoder": encoder},
        callbacks=callbacks,
        warn=warn,
    ).run()


@dataclass(kw_only=True)
class _Refine(TrainingJob):
    """The training job of `refine`."""

    command = "refine"
    settings: RefineSettings

    def inputs(self) -> dict[str, Any]:
        data = load_training_data(self.request, self.tasks)
        data.require_labels("mtkd refine")
        self.rows = EncodedRows(data)
        return {"data": self.rows.data.digests, "encoder": digest_encoder(self.sources["encoder"])}

    def prepare(self) -> MultiTaskModel:
        settings, name = self.settings, self.sources["encoder"]
        torch.manual_seed(settings.train.seed)
        pooling = None if settings.pooling == "auto" else settings.pooling
        encoder = TransformerEncoder.pretrained(name, pooling, settings.layers, self._pairs())
        info = ModelInfo(
            settings.max_length,
            settings.head_hidden_size,
            settings.dropout,
            base=name,
            stride=settings.stride,
            pair_head=settings.pair_head,
        )
        self.model = MultiTaskModel(encoder, self.tasks, Tokeniser.load(locate(name)), info)
        reader = self.model.reader
        self.rows = self.rows.for_reader(reader)
        data = self.rows.data
        self.warnings += [*data.warnings, *data.window_warnings, *self.rows.cut_warnings(reader)]
        self.evaluate = evaluator(data.tasks, self.rows.validation(reader), self.accelerator, settings.train)
        self.encoded = self.rows.train(reader)
        self.objective = weigh_classes(labels_objective(), settings.train, data)
        train = settings.train.with_epochs(data.n_train)
        if train.lr == "auto":
            train = train.model_copy(update={"lr": self._suitable_lr()})
        self.settings = settings.model_copy(update={"train": train})
        self.batches = TaskBatches(data.tasks, self.encoded, Collator(reader), train)
        return self.model

    def _pairs(self) -> PairEncoding:
        """How the encoder reads tasks with two texts; UserError if that does not suit `pair_head`."""
        settings = self.settings
        if settings.pairs == "auto":
            return self._suitable_pairs()
        if settings.pairs == "cross-encoder":
            return "cross-encoder"
        if settings.pair_head == "san":
            raise UserError(
                "pair_head=san reads both texts together, and a bi-encoder reads each separately",
                hint="use `settings={'pairs': 'cross-encoder'}` or `settings={'pair_head': 'linear'}`",
            )
        return bi_encoder_for(settings.pairs, self.tasks) if settings.pairs != "bi-encoder" else "bi-encoder"

    def _suitable_pairs(self) -> PairEncoding:
        """How to read pairs of texts if `pairs` is "auto".

        An encoder that was trained to compare sentences is used as a bi-encoder for few rows, and for tasks
        with scores; everything else is read by a cross-encoder.
        """
        settings, name = self.settings, self.sources["encoder"]
        config = pretrained_config(name, None if settings.pooling == "auto" else settings.pooling)
        suits = settings.pair_head == "linear" and compares_sentences(name) and can_be_bi_encoder(config)
        if not suits:
            return "cross-encoder"
        pairs = [part for part in self.rows.data.parts if len(part.task.columns) == 2]
        few = sum(len(part.train) for part in pairs) < FEW_ROWS * len(pairs)
        if few and not any(part.task.type.predicts_spans for part in pairs):
            return "bi-encoder"
        scored = [part.task.name for part in pairs if part.task.kind == "regress"]
        return bi_encoder_for(scored, self.tasks)

    def _suitable_lr(self) -> float:
        """The learning rate that "auto" means here."""
        settings, n_train = self.settings, self.rows.data.n_train
        probed = probed_tasks(settings.init_heads, self.tasks, self.model.encoder)
        is_low = probe_nearly_suffices(self.tasks, probed, settings.head_hidden_size, n_train)
        return _REFINE_PROBE_LR if is_low else _REFINE_LR

    def train(self) -> JobResult:
        trainer = Trainer(
            self.accelerator,
            self.model,
            self.objective,
            self.batches,
            self.settings.train,
            self.request.out,
            evaluate=self.evaluate,
            callbacks=self.callbacks,
            label="refining",
        )
        train = self.settings.train
        probed = probed_tasks(self.settings.init_heads, self.tasks, self.model.encoder)
        if probed and not trainer.resumes:
            rows = {name: self.encoded[name] for name in probed}
            batch_size, bf16 = train.eval_batch_size, train.precision == "bf16"
            fitted = fit_linear_heads(self.model, self.batches.tasks, rows, batch_size, train.seed, bf16=bf16)
            if len(fitted) == len(self.tasks):
                trainer.evaluate_start = self.evaluate
        outcome = trainer.fit()
        validation = self.rows.validation(self.model.reader)
        scores = evaluator(self.rows.data.tasks, validation, self.accelerator, train, final=True)(self.model)
        return JobResult(self.model, scores, vars(outcome))
