"""From a recipe's terms to an objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mtkd.losses.hidden import HiddenMSE
from mtkd.losses.logits import Labels, LogitsMSE, SoftLabels
from mtkd.losses.objective import Objective
from mtkd.losses.term import LossTerm
from mtkd.students.build import AnyEncoder
from mtkd.students.transformer import TransformerEncoder
from tasks.errors import UserError

# To add a loss: its term here, and its settings in mtkd/config.py. A builder gets the term's settings,
# the student's encoder and the teacher's (None where there is no teacher).
LOSSES: dict[str, Callable[[Any, AnyEncoder, AnyEncoder | None], LossTerm]] = {
    "logits_mse": lambda s, student, teacher: LogitsMSE(),
    "labels": lambda s, student, teacher: Labels(),
    "soft_labels": lambda s, student, teacher: SoftLabels(s.temperature),
    "hidden_mse": lambda s, student, teacher: HiddenMSE(
        s.student_layer, s.teacher_layer, _hidden_width(student), _hidden_width(teacher)
    ),
}


def build_objective(terms: Mapping[str, Any], student: AnyEncoder, teacher: AnyEncoder | None) -> Objective:
    """The objective of a recipe; terms of weight 0 are left out.

    Args:
        terms: name -> term settings.
    """
    used = {name: settings for name, settings in terms.items() if settings.weight > 0}
    return Objective(
        {name: LOSSES[settings.loss](settings, student, teacher) for name, settings in used.items()},
        {name: settings.weight for name, settings in used.items()},
    )


def _hidden_width(encoder: AnyEncoder | None) -> int:
    """The width of an encoder's hidden states.

    Raises:
        UserError: it has none: an LSTM that reads texts apart has no states to compare token by token.
    """
    if isinstance(encoder, TransformerEncoder):
        return encoder.hidden_width
    raise UserError(
        "the loss 'hidden_mse' needs hidden states token by token, which a BiLSTM does not give",
        allowed="for a BiLSTM: logits_mse, soft_labels, labels",
        mend="drop the term, or --set student.kind=transformer",
    )
