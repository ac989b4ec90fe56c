"""The loss term: what every loss is a subclass of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from mtkd.losses.term_settings import Points, TermSettings
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from tasks.batching import Batch
from tasks.task import Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TermInput:
    """Everything that a loss term can read for one micro-batch.

    Attributes:
        teacher: None if no term needs the teacher.
        num_items: the term's own `LossTerm.num_items` for this micro-batch, counted on the CPU.
        progress: the fraction of the training steps already done, 0 to 1.
        on: the student layers that are switched on (slow build); None = all.
    """

    task: Task
    batch: Batch
    student: ModelOutput
    teacher: ModelOutput | None
    num_items: int
    progress: float = 0.0
    on: frozenset[int] | None = None

    @property
    def teacher_signal(self) -> ModelOutput:
        """The teacher's signal, for terms that stated a teacher_need."""
        assert self.teacher is not None, "a term without a teacher_need asked for the teacher"
        return self.teacher


@dataclass(frozen=True)
class ModelPair:
    """The sizes of student and teacher, and the tasks that they are trained on."""

    student: EncoderSpec
    teacher: EncoderSpec
    tasks: tuple[Task, ...]


class LossTerm(nn.Module):
    """One term of the objective.

    It states what it needs of student and teacher, owns its projections (which are never exported),
    says over how many items (rows, tokens) of a batch it sums, and returns that sum:
    `forward(given: TermInput) -> Tensor` (scalar). The objective divides.

    Attributes:
        Settings: what a recipe can set; loss classes with settings of their own have a subclass here.
        student_need, teacher_need: the outputs it needs of each model. Layers may be set in `__init__`, but
            logits must be stated by the class: whether a teacher needs task heads is known from the class.
        needs_labels: True if it has no value for rows without labels.
        without_layers: whether it works for models without Transformer layers, such as a BiLSTM; a dict
            holds the settings with which it does. Error messages list the losses by this.
        with_strides: the same for students whose states stand for several tokens, such as WaLDORf.
        compared: (student layer, teacher layer) pairs that are switched on one after the other by slow
            build; a term without pairs starts after all of them.
        weight: its factor in the objective, or points over the steps (`mtkd/losses/term_settings.py`).
        kinds: the kinds of task that it applies to; None = all.
    """

    Settings: ClassVar[type[TermSettings]] = TermSettings
    needs_labels: ClassVar[bool] = False
    without_layers: ClassVar[bool | dict[str, Any]] = True
    with_strides: ClassVar[bool | dict[str, Any]] = True

    student_need: OutputSpec = OutputSpec()
    teacher_need: OutputSpec = OutputSpec()
    compared: Sequence[tuple[int, int]] = ()
    weight: float | Points = 1.0
    kinds: Sequence[str] | None = None

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        """Build the term; what can be checked from sizes is checked here, before any weight is loaded.

        By default, the settings that are not common to all losses are passed to `__init__` by name.

        Args:
            name: of the term, for error messages.
            settings: an instance of `cls.Settings`.

        Raises:
            UserError: the term does not fit the models or tasks.
        """
        common = TermSettings.model_fields
        return cls(**{key: getattr(settings, key) for key in cls.Settings.model_fields if key not in common})

    @classmethod
    def needs_task(cls) -> bool:
        """True if it cannot be used on plain text, which has neither task heads nor labels."""
        return cls.needs_labels or cls.student_need.logits or cls.teacher_need.logits

    def pairs_on(self, on: frozenset[int] | None) -> list[tuple[int, int]]:
        """The compared pairs whose student layer is in `on`; None = all pairs."""
        return [pair for pair in self.compared if on is None or pair[0] in on]

    def needs(self, on: frozenset[int]) -> tuple[OutputSpec, OutputSpec]:
        """What it needs of student and teacher while only these of the student's layers are on."""
        pairs = self.pairs_on(on)
        if not pairs:
            return OutputSpec(), OutputSpec()
        student_layers, teacher_layers = (frozenset(layers) for layers in zip(*pairs, strict=True))
        return self.student_need.within(student_layers), self.teacher_need.within(teacher_layers)

    def num_items(self, task: Task, batch: Batch) -> int:
        """The number of items that the term sums over; rows unless a subclass says otherwise."""
        return len(batch)


def wide(values: Tensor) -> Tensor:
    """The same values in float32, or as they are if they are wider: losses are not computed in less."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function computed in float32 or wider, also under autocast; what is given twice is widened once."""

    @functools.wraps(loss)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        widened: dict[int, Tensor] = {}

        def widen(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            if id(value) not in widened:
                widened[id(value)] = wide(value)
            return widened[id(value)]

        given = [*args, *kwargs.values()]
        device = next((value.device.type for value in given if isinstance(value, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return loss(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return run
