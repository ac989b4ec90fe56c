"""The objective: a weighted sum of loss terms, built from settings or from ready-made terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_

import torch
from torch import Tensor, nn

from mtkd.losses.compatibility import require_offered
from mtkd.losses.logits import Labels
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput
from mtkd.losses.slow_build import SlowBuild
from mtkd.losses.term_settings import TermName, TermSettings, applies_to, is_zero, value_at
from mtkd.models.user_class_errors import Hints, is_user_class, user_class_errors
from mtkd.outputs import BY_LAYER, EncoderSpec, ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from tasks.common.errors import UserError, a_type
from tasks.common.records import check_value
from tasks.task import Task
from tasks.tokens.batching import Batch

Term = TermSettings | LossTerm  # the settings of a term, or a ready-made term

_HINTS: Hints = {
    (AttributeError, TypeError, KeyError, AssertionError): "declare every output that it reads, such as "
    "`student_need = mtkd.OutputSpec(pooled=True)`; a student of your own must return what its `spec` offers",
    (RuntimeError,): "check the widths of both models",
}


class Objective(nn.Module):
    """L = sum over terms of weight * (sum over items) / (number of items).

    The items are counted over the whole step (all micro-batches of all processes), so splitting a batch does
    not change the result, except for losses that relate the rows of a micro-batch to each other (SampleTerm),
    and for the layer map `emd`, which computes a flow and updates its layer weights per micro-batch.

    Args:
        terms: name -> term; each term holds its weight and the task types that it applies to.
        slow_build: the fraction of the steps during which layers are switched on one after another.
    """

    def __init__(self, terms: Mapping[str, LossTerm], slow_build: float = 0.0):
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.slow_build = SlowBuild.of(slow_build, terms.values())
        # Only weights of a term itself, such as projections, can hide that it does not read the student.
        own = {name: term for name, term in terms.items() if is_user_class(type(term))}
        self._unchecked = {name for name, term in own.items() if any(True for _ in term.parameters())}

    def _terms(self) -> list[tuple[str, LossTerm]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def student_need(self) -> OutputSpec:
        """Everything that the terms need from the student."""
        return reduce(or_, (term.student_need for _, term in self._terms()), OutputSpec())

    @property
    def teacher_need(self) -> OutputSpec:
        """Everything that the terms need from the teacher."""
        return reduce(or_, (term.teacher_need for _, term in self._terms()), OutputSpec())

    def needs(self, progress: float) -> tuple[OutputSpec, OutputSpec]:
        """What the terms need from student and teacher at this point; slow build can reduce it."""
        if self.slow_build.done(progress):
            return self.student_need, self.teacher_need
        active = self.slow_build.active_layers(progress)
        student, teacher = zip(*(term.needs(active) for _, term in self._terms()), strict=True)
        return reduce(or_, student, OutputSpec()), reduce(or_, teacher, OutputSpec())

    def token_positions(self, layer: int, teacher: ModelOutput | None) -> Tensor | None:
        """The positions (B, n) of the tokens of which the terms read a student layer's states; None = all."""
        readers = [term for _, term in self._terms() if layer in term.student_need.hidden]
        if teacher is None or len(readers) != 1:
            return None
        return readers[0].token_positions(layer, teacher)

    def trains(self, task: Task) -> bool:
        """Whether a term with a weight other than 0 applies to a task."""
        weighted = [term for _, term in self._terms() if not is_zero(term.weight)]
        return any(applies_to(term.task_types, task) for term in weighted)

    def num_items(self, task: Task, batch: Batch) -> list[int]:
        """Count the items of this batch for each term; 0 for terms that do not apply to the task."""
        return [
            term.num_items(task, batch) if applies_to(term.task_types, task) else 0
            for _, term in self._terms()
        ]

    def forward(
        self,
        task: Task,
        batch: Batch,
        student: ModelOutput,
        teacher: ModelOutput | None,
        num_items: list[int],
        progress: float = 0.0,
        batch_items: list[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute what one micro-batch contributes to the objective.

        Args:
            num_items: for each term, the number of items in the whole step.
            progress: the fraction of the training steps already done, 0 to 1; weights and temperatures can
                change with it.
            batch_items: for each term, the number of items in this micro-batch; None = count them here, which
                on a GPU waits for the device.

        Returns:
            the loss (scalar), and the value of each term before weighting, (n_terms,), detached.
        """
        active = None if self.slow_build.done(progress) else self.slow_build.active_layers(progress)
        loss = _zero_loss(student)
        requires_grad = loss.requires_grad
        values = []
        counts = self.num_items(task, batch) if batch_items is None else batch_items
        for (name, term), step_count, batch_count in zip(self._terms(), num_items, counts, strict=True):
            term_progress = progress if term.slow_build_pairs else self.slow_build.progress_since(progress)
            inputs = TermInput(task, batch, student, teacher, batch_count, term_progress, active)
            weight = value_at(term.weight, progress)
            value = loss.new_zeros(())
            if step_count and weight and (active is None or term.active_pairs(active)):
                value = _value(name, term, inputs, requires_grad)
                if requires_grad and name in self._unchecked:
                    self._unchecked.remove(name)
                    _require_dependence(name, value, student)
                value = value / step_count
            values.append(value.detach().float())
            loss = loss + weight * value
        return loss, torch.stack(values)


def _value(name: str, term: LossTerm, inputs: TermInput, requires_grad: bool) -> Tensor:
    """Compute the value of a term and check it; `requires_grad`: the student's outputs have gradients."""
    with user_class_errors(f"the loss {name!r}", type(term), _HINTS):
        value = term(inputs)
    if not isinstance(value, Tensor) or value.ndim:
        result = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else a_type(value)
        raise UserError(
            f"the loss {name!r} returned {result}",
            expected="the sum over the items of the micro-batch, as a scalar tensor",
            hint="end its `forward` with `.sum()`",
        )
    if requires_grad and not value.requires_grad:
        raise _independent(name)
    return value


def _require_dependence(name: str, value: Tensor, student: ModelOutput) -> None:
    """Raise UserError if the value of a term depends on none of the student's outputs."""
    by_layer = [tensor for kind in BY_LAYER for tensor in getattr(student, kind).values()]
    outputs = [student.logits, student.pooled, student.sequence, *by_layer]
    read = [output for output in outputs if output is not None and output.requires_grad]
    gradients = torch.autograd.grad(value, read, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise _independent(name)


def _independent(name: str) -> UserError:
    """The error for a term that does not depend on the student."""
    return UserError(
        f"the loss {name!r} does not depend on the student, so nothing could learn from it",
        expected="a value computed from `inputs.student_outputs`, not detached from it",
    )


def _zero_loss(student: ModelOutput) -> Tensor:
    """A zero that depends on the student's outputs, so that a step without any active term has a gradient."""
    if student.logits is not None or student.pooled is not None:
        output = student.pooled if student.logits is None else student.logits
    else:
        output = next(tensor for kind in BY_LAYER for tensor in getattr(student, kind).values())
    assert output is not None, "the terms need some output of the student"
    return output.float().flatten()[:1].sum() * 0.0


def build_objective(
    terms: Mapping[str, Term] | Sequence[Term],
    student: EncoderSpec,
    teacher: EncoderSpec | None,
    tasks: Iterable[Task],
    slow_build: float = 0.0,
    seed: int = 0,
) -> Objective:
    """Build the objective of a stage.

    The projections are initialised in the order of the terms; the caller seeds torch.

    Args:
        terms: name -> the settings of a term or a ready-made term; or a list of these (`named_losses`).
        teacher: None for training without a teacher.
        tasks: all tasks of the stage.
        slow_build: see DistillSettings.
        seed: see ModelPair.

    Raises:
        UserError: there is no term, or a term does not fit the sizes of student and teacher, or needs an
            output that one of them does not have.
    """
    models = ModelPair(student, teacher or _NO_TEACHER, tuple(tasks), seed)
    named = terms if isinstance(terms, Mapping) else named_losses(terms)
    if not named:
        raise UserError("there is no loss to train on", hint="pass one or more losses")
    for name in named:
        check_value(name, TermName, "the name of a loss")
    loss_terms = {name: _build(name, term, models) for name, term in named.items()}
    for name, term in loss_terms.items():
        require_offered(name, term, models, drop=_how_to_drop(name, named[name]))
    if all(term.student_need == OutputSpec() for term in loss_terms.values()):
        raise UserError(
            f"no loss needs any output of the student: {', '.join(map(repr, loss_terms))}",
            expected="a loss whose class declares `student_need`",
            hint="for example `student_need = mtkd.LOGITS`",
        )
    return Objective(loss_terms, slow_build)


def named_losses(losses: Sequence[Term]) -> dict[str, Term]:
    """Name terms by their loss or their class; the second one of a name is called `NAME-2`, and so on."""
    counts: Counter[str] = Counter()
    named = {}
    for term in losses:
        name = term.loss if isinstance(term, TermSettings) else type(term).__name__
        counts[name] += 1
        named[name if counts[name] == 1 else f"{name}-{counts[name]}"] = term
    return named


def teacher_need_of(term: Term) -> OutputSpec:
    """What a term needs from the teacher; that of settings does not say which layers."""
    return term.teacher_need if isinstance(term, LossTerm) else loss_class(term.loss).teacher_need


def labels_objective() -> Objective:
    """An objective with only the tasks' own losses on labels."""
    return Objective({"labels": Labels()})


_NO_TEACHER = EncoderSpec("none")


def _build(name: str, term: Term, models: ModelPair) -> LossTerm:
    if isinstance(term, LossTerm):
        _check_attributes(name, term)
        return term
    loss = loss_class(term.loss)
    own_settings = [key for key in loss.Settings.model_fields if key not in TermSettings.model_fields]
    hint = (
        f"its `__init__` is called with its `Settings` by name: {', '.join(own_settings) or 'there are none'}"
    )
    with user_class_errors(f"the loss {name!r}", loss, {(TypeError,): hint}):
        built = loss.from_settings(name, term, models)
    built.weight, built.task_types = term.weight, term.task_types
    return built


def _check_attributes(name: str, term: LossTerm) -> None:
    """Raise UserError if the weight or the task types of a ready-made term are invalid."""
    if not isinstance(term.weight, int | float | list | tuple):
        raise UserError(
            f"the attribute `weight` of the loss {name!r} is {a_type(term.weight)}",
            expected="a number, or points [fraction of the steps, value]: its factor in the objective",
            hint="`float(weight)`; a parameter that is trained needs another name",
        )
    try:
        validate(TermSettings, {"loss": name, "weight": term.weight, "task_types": term.task_types})
    except UserError as error:
        problem = f"the loss {name!r}: {error.problem}"
        raise UserError(problem, expected=error.expected, hint=error.hint) from error


def _how_to_drop(name: str, term: Term) -> str:
    """How to train without a term, for hints."""
    if isinstance(term, LossTerm):
        return f"leave {name!r} out of `losses`"
    return f"drop the term with `terms.{name}.weight=0`"
