"""The settings of the training loop, which all recipes share: their names, defaults and allowed values."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError
from tasks.common.records import Seed
from tasks.tokens.sampler import Mixing

AUTO_STEPS = 1000  # epochs = "auto": the number of steps to aim for
AUTO_EPOCHS = (3, 20)  # the minimum and maximum number of epochs for it
FEW_ROWS = 2000  # a task with fewer labelled rows has few labels
DISTILL_LR = 2e-4  # lr = "auto" in `mtkd distill`, except with few labels and heads from a linear probe
PrecisionOrAuto = Literal["fp32", "bf16", "auto"]
Beta = Annotated[float, Field(ge=0, lt=1)]

# The docstrings of the following checks are shown as the allowed values of their settings.


def _betas(value: tuple[float, float] | None, info: ValidationInfo) -> tuple[float, float] | None:
    """two numbers from 0 to below 1 (only for adam and adamw), or none"""
    if value is not None and info.data.get("optimizer") == "adadelta":
        raise ValueError("adadelta has no betas")
    return value


def _batch_tokens(value: int | None, info: ValidationInfo) -> int | None:
    """integer > 0 (not with epochs = "auto" without `steps`), or none"""
    if value is not None and info.data.get("epochs") == "auto" and info.data.get("steps") is None:
        raise ValueError('an integer > 0 together with `epochs` or `steps`, instead of epochs = "auto"')
    return value


def _warmup(value: float) -> float:
    """a fraction from 0 to below 1, or an integer number of steps"""
    if value < 0 or (value >= 1 and value != int(value)):
        raise ValueError("a fraction from 0 to below 1, or an integer number of steps")
    return value


class TrainSettings(StrictSettings):
    """How the training loop runs.

    Attributes:
        epochs: the number of passes over the training rows; "auto" = as many as make 1,000 steps, but
            at least 3 and at most 20. For this, all training rows count, even those that
            `unlabelled_fraction` or `min_confidence` leaves out.
        steps: the total number of optimiser steps, instead of `epochs`; None = use `epochs`.
        batch_size: rows per optimiser step, over all processes.
        batch_tokens: instead of `batch_size`, as many rows per optimiser step, over all processes, as fit
            into this many tokens of the trained model, padding included (rows x tokens of the longest row); a
            longer row is a step of its own.
        micro_batch_size: rows that go through the model at once on each process; None = all rows that the
            process has in a step.
        eval_batch_size: rows that go through the model at once during evaluation.
        optimizer: the optimiser, as in torch.optim; weight decay is decoupled from the gradient in `adamw`,
            and part of it in `adam`.
        betas: the decay rates of Adam's two moments; None = torch's, 0.9 and 0.999.
        eps: the constant that the optimiser adds to denominators; None = torch's (1e-8 for Adam).
        lr: the peak learning rate; "auto" is 5e-5 in `mtkd refine` and 2e-4 in `mtkd distill`. It is lower
            (2e-5 and 5e-5) if the model learns from labels alone, every head starts from a linear probe, and
            the tasks have fewer than 2,000 labelled rows each on average.
        weight_decay: the weight decay of all weights except biases and normalisation layers.
        schedule: the learning rate after warm-up: `constant`, or `linear` decay to 0.
        warmup: the length of the warm-up, in which the learning rate rises linearly: a fraction of all steps
            if below 1, otherwise a number of steps.
        max_grad_norm: the maximum gradient norm; None = no clipping.
        precision: "bf16" runs the trained model under autocast; "auto" does so if the device has native bf16
            support. The scores at the end of a run are computed in fp32.
        mixing: how often each task is drawn: all its rows once per epoch (`all`), in proportion to its number
            of rows n (`proportional`) or to sqrt(n) (`sqrt`), equally often (`uniform`), or in proportion to
            n at first and n**0.2 at the end (`annealed`).
        group_by_length: whether to put rows of similar length into the same batch.
        shuffle: which rows are shuffled: all rows (`rows`), or the order of blocks of 4,096 rows and the rows
            within each block (`blocks`, which reads a knowledge store in order); `auto` uses `blocks` for a
            store over 1 GiB.
        patience: stop after this many evaluations without a better `metric`; None = never. There is one
            evaluation after each epoch, but none during slow build.
        metric: the metric to watch: "score" (mean of the tasks' scores), "loss", "task/metric" such as
            "rte/accuracy", or "task/split/metric"; the splits of a task are averaged unless one is named.
        keep: which weights to keep: those of the epoch that was best by `metric` ("best"), or the last ones
            ("last"). The model before training counts as epoch 0 if its heads are trained already: in
            `mtkd finetune` if it has a head for the task, in `mtkd refine` if all heads are linear probes.
        checkpoint_minutes: how many minutes may pass before another checkpoint is written; one is always
            written after each epoch.
        checkpoint_steps: also write a checkpoint every this many steps.
        steps_per_epoch: the number of steps that count as an epoch, after which the model is evaluated; None
            = one pass over the rows.
        unlabelled_fraction: the fraction of the rows of an epoch that have no labels: each epoch uses every
            labelled row once, and as many unlabelled rows as make up this fraction; the next epoch
            continues with the unlabelled rows that follow. None = all rows once.
        min_confidence: drop unlabelled rows if the teacher's most probable class has a lower probability
            (classification only); None = keep all.
        class_weights: weights of the classes in the loss on labels of classification tasks: one number per
            label, or "balanced" = inversely proportional to their number of rows; None = 1. They are divided
            by their mean over the labelled training rows, so that the loss is a weighted mean, as in torch.
        seed: the random seed of weights, row order and dropout.
    """

    epochs: Annotated[int, Field(gt=0)] | Literal["auto"] = 3
    steps: int | None = Field(None, gt=0)
    batch_size: int = Field(32, gt=0)
    batch_tokens: Annotated[int | None, Field(gt=0), AfterValidator(_batch_tokens)] = None
    micro_batch_size: int | None = Field(None, gt=0)
    eval_batch_size: int = Field(64, gt=0)
    optimizer: Literal["adam", "adamw", "adadelta"] = "adamw"
    betas: Annotated[tuple[Beta, Beta] | None, AfterValidator(_betas)] = None
    eps: float | None = Field(None, gt=0)
    lr: Annotated[float, Field(gt=0)] | Literal["auto"] = 5e-5
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear"] = "linear"
    warmup: Annotated[float, AfterValidator(_warmup)] = 0.0
    max_grad_norm: float | None = Field(1.0, gt=0)
    precision: PrecisionOrAuto = "fp32"
    mixing: Mixing = "all"
    group_by_length: bool = True
    shuffle: Literal["auto", "rows", "blocks"] = "auto"
    steps_per_epoch: int | None = Field(None, gt=0)
    unlabelled_fraction: float | None = Field(None, gt=0, lt=1)
    min_confidence: float | None = Field(None, gt=0, le=1)
    class_weights: Literal["balanced"] | list[Annotated[float, Field(ge=0)]] | None = None
    metric: str = "score"
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(None, gt=0)
    checkpoint_minutes: float = Field(10.0, gt=0)
    checkpoint_steps: int | None = Field(None, gt=0)
    seed: Seed = 0

    @property
    def n_epochs(self) -> int:
        """The number of epochs.

        Raises:
            UserError: it is "auto", which depends on the number of rows (see `with_epochs`).
        """
        if self.epochs == "auto":
            raise UserError(
                "train.epochs=auto cannot be used here: the number of rows is not known",
                hint="set `train.epochs=N`",
            )
        return self.epochs

    @property
    def peak_lr(self) -> float:
        """The peak learning rate as a number.

        Raises:
            UserError: it is "auto", which depends on the rows and the heads.
        """
        if self.lr == "auto":
            raise UserError("train.lr=auto cannot be used here", expected="a number > 0")
        return self.lr

    def with_epochs(self, rows: int) -> TrainSettings:
        """These settings with the number of epochs that "auto" means for this many training rows."""
        if self.epochs != "auto":
            return self
        epochs = math.ceil(AUTO_STEPS / math.ceil(rows / self.batch_size))
        return self.model_copy(update={"epochs": min(max(epochs, AUTO_EPOCHS[0]), AUTO_EPOCHS[1])})
