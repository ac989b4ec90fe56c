"""Errors for losses, weights and outputs that are not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtkd.models.user_class_errors import class_of, is_user_class
from mtkd.outputs import BY_LAYER, EncoderOutput
from mtkd.training.step_plan import StepPlan
from tasks.common.errors import UserError

_CHECK = "for divisions by 0, log(0) and sqrt(0)"


def not_finite(
    step: int,
    task: str | None,
    checkpoint: Path | None,
    change: str,
    terms: Sequence[str],
    added: Sequence[str],
) -> UserError:
    """The error for a step whose loss or weights are not finite.

    Args:
        checkpoint: the newest checkpoint; None if there is none yet.
        change: completes the hint "start over with ...".
        terms: the names of the loss terms that are not finite; none if it is something else.
        added: those of them that are not part of mtkd.
    """
    names = ", ".join(map(repr, terms))
    losses = f"the loss {names} is" if len(terms) == 1 else f"the losses {names} are"
    subject = losses if terms else "loss or weights are"
    note = f"the last good checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint yet"
    hint = f"start over (`overwrite=True`) with {change}"
    if added:
        check = f"check the formula of {', '.join(map(repr, added))} {_CHECK}"
        # Before the first step, the weights are not the cause.
        hint = f"{check}, then start over (`overwrite=True`)" if step == 1 else f"{check}; or {hint}"
    return UserError(f"{subject} not finite at step {step} (task {task!r}); {note}", hint=hint)


def check_encoder(encoder: nn.Module, plan: StepPlan) -> None:
    """Compute a failed first step again, to see whether the user's own encoder returned non-finite values.

    Raises:
        UserError: its outputs are not finite.
    """
    kind = class_of(encoder)
    if not is_user_class(kind):
        return
    found: dict[str, None] = {}

    def examine(module: nn.Module, inputs: Any, output: EncoderOutput) -> None:
        found.update(dict.fromkeys(_not_finite_outputs(output)))

    with torch.no_grad(), encoder.register_forward_hook(examine):
        for compute in plan.micro_batches:
            compute()
    if found:
        raise UserError(
            f"the student's encoder {kind.__name__} returned values that are not finite at step 1 (task "
            f"{plan.task!r}), in {', '.join(f'`{name}`' for name in found)}",
            expected="finite numbers",
            hint=f"check its `forward` {_CHECK}, and its initial weights, then start over (`overwrite=True`)",
        )


def _not_finite_outputs(output: EncoderOutput) -> Iterator[str]:
    """The names of the outputs that are not finite; padding may be anything, and so may attention scores."""
    values: dict[str, Tensor | None] = {"pooled": output.pooled, "sequence": output.sequence}
    for name in BY_LAYER:
        if name != "scores":
            values |= {f"{name}[{layer}]": value for layer, value in getattr(output, name).items()}
    for name, value in values.items():
        if value is None:
            continue
        is_padded = value.ndim == 3 and output.mask is not None and value.shape[:2] == output.mask.shape
        if not (value[output.mask] if is_padded else value).isfinite().all():
            yield name
