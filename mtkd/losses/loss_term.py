"""The base class of all loss terms, and what a term receives."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from mtkd.losses.term_settings import Points, TermSettings
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import Batch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TermInput:
    """Everything that a loss term can read for one micro-batch.

    Attributes:
        task: the task of the batch.
        batch: the rows, with the inputs of both models and the labels.
        student_outputs: the outputs of the student for these rows, with gradients.
        teacher: the outputs of the teacher, without gradients; None if no term needs them. Terms read the
            property `teacher_outputs`.
        num_items: the result of `LossTerm.num_items` for this micro-batch, counted on the CPU.
        progress: the fraction of the training steps already done, 0 to 1; for terms that compare no layers,
            of the steps after slow build.
        active_layers: the student layers that are switched on (slow build); None = all.
    """

    task: Task
    batch: Batch
    student_outputs: ModelOutput
    teacher: ModelOutput | None
    num_items: int
    progress: float = 0.0
    active_layers: frozenset[int] | None = None

    @property
    def teacher_outputs(self) -> ModelOutput:
        """The teacher's outputs, for terms that declare a `teacher_need`.

        Raises:
            UserError: no term declares one.
        """
        if self.teacher is None:
            raise UserError(
                "a loss reads `teacher_outputs`, but its class declares no `teacher_need`",
                hint="for example `teacher_need = mtkd.LOGITS`",
            )
        return self.teacher


@dataclass(frozen=True)
class ModelPair:
    """The sizes of student and teacher, and the tasks of the training run.

    Attributes:
        seed: `train.seed`, for random choices that must not depend on the other terms, such as what a
            knowledge store keeps.
    """

    student: EncoderSpec
    teacher: EncoderSpec
    tasks: tuple[Task, ...]
    seed: int = 0


class LossTerm(nn.Module, ABC):
    """Base class of the terms of the objective.

    A term declares which outputs it needs from student and teacher, owns its projections (which are never
    exported), counts the items (rows or tokens) of a batch, and returns the sum of its loss over these items
    from `forward`. The objective divides this sum by the item count; "Averaged over:" in the docstring of a
    term names its items.

    Attributes:
        Settings: the settings that a recipe can change; a loss with settings of its own defines a subclass.
        student_need, teacher_need: the outputs that the term needs from each model. Layers can be set in
            `__init__`, but logits must be declared by the class, because the class alone decides whether the
            teacher needs task heads.
        needs_labels: True if the loss is undefined for unlabelled rows.
        works_without_layers: whether the loss can be used if a model has no Transformer layers, such as a
            BiLSTM: True, False, or the settings that make it possible, such as {"row_vector": "pooled"}. It
            is only used to suggest other losses in error messages.
        works_with_strides: the same for students whose hidden states stand for several tokens each, as in
            WaLDORf.
        slow_build_pairs: the (student layer, teacher layer) pairs that slow build switches on one after
            another; a term without pairs starts after all of them.
        weight: the factor in the objective, or points over the steps (`mtkd/losses/term_settings.py`).
        task_types: the task types that the term applies to; None = all.
    """

    Settings: ClassVar[type[TermSettings]] = TermSettings
    needs_labels: ClassVar[bool] = False
    works_without_layers: ClassVar[bool | dict[str, Any]] = True
    works_with_strides: ClassVar[bool | dict[str, Any]] = True

    student_need: OutputSpec = OutputSpec()
    teacher_need: OutputSpec = OutputSpec()
    slow_build_pairs: Sequence[tuple[int, int]] = ()
    weight: float | Points = 1.0
    task_types: Sequence[str] | None = None

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        """Build the term from a recipe's settings, and check that it fits before any weight is loaded.

        By default, the settings that are not common to all losses are passed to `__init__` by name.

        Args:
            name: the name of the term, for error messages.
            settings: an instance of `cls.Settings`.

        Raises:
            UserError: the term does not fit the models or tasks.
        """
        common = TermSettings.model_fields
        return cls(**{key: getattr(settings, key) for key in cls.Settings.model_fields if key not in common})

    def token_positions(self, layer: int, teacher: ModelOutput) -> Tensor | None:
        """The positions (B, n) of the tokens of which the term reads a student layer's states; None = all."""
        return None

    @classmethod
    def needs_task(cls) -> bool:
        """True if the loss needs task heads or labels, and so cannot be used on plain text."""
        return cls.needs_labels or cls.student_need.logits or cls.teacher_need.logits

    def active_pairs(self, active_layers: frozenset[int] | None) -> list[tuple[int, int]]:
        """Return the compared pairs whose student layer is active; None = all pairs."""
        return [pair for pair in self.slow_build_pairs if active_layers is None or pair[0] in active_layers]

    def needs(self, active_layers: frozenset[int]) -> tuple[OutputSpec, OutputSpec]:
        """What the term needs from student and teacher while only these student layers are used."""
        pairs = self.active_pairs(active_layers)
        if not pairs:
            return OutputSpec(), OutputSpec()
        student_layers, teacher_layers = (frozenset(layers) for layers in zip(*pairs, strict=True))
        return self.student_need.within(student_layers), self.teacher_need.within(teacher_layers)

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the items of a batch that the term sums over; rows, unless a subclass overrides this."""
        return len(batch)

    @abstractmethod
    def forward(self, inputs: TermInput) -> Tensor:
        """The sum of the loss over the items of a micro-batch: a scalar that depends on `student_outputs`."""


def to_float32(values: Tensor) -> Tensor:
    """Convert to float32, or keep float64: losses are never computed in lower precision."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: compute the loss in float32 or float64, even under autocast.

    A tensor that is passed twice is converted once, so the function still sees one object.
    """

    @functools.wraps(loss)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        converted: dict[int, Tensor] = {}

        def convert(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            if id(value) not in converted:
                converted[id(value)] = to_float32(value)
            return converted[id(value)]

        values = [*args, *kwargs.values()]
        device = next((value.device.type for value in values if isinstance(value, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return loss(*map(convert, args), **{name: convert(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return run
