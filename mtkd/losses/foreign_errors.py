"""Errors inside losses that are not part of mtkd: they name the loss."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import torch

from tasks.common.errors import UserError

NEEDS_HINT = (
    "declare every output that it reads, such as `student_need = mtkd.OutputSpec(pooled=True)`, "
    "and check the widths of both models"
)


@contextlib.contextmanager
def naming_loss(name: str, loss: type, hint: str = NEEDS_HINT) -> Iterator[None]:
    """Raise a UserError that names the loss for an error inside the block; the error itself is its cause.

    Errors of mtkd's own losses, and those about memory, are not changed.

    Args:
        name: the name of the loss in this run.
        loss: its class.
        hint: how to fix the most frequent mistakes.
    """
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a loss can raise anything
        module = loss.__module__
        if module.partition(".")[0] == "mtkd":
            raise
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_globals.get("__name__") == module]
        line = f", line {lines[-1]}" if lines else ""
        raise UserError(
            f"the loss {name!r} ({module}:{loss.__qualname__}{line}) failed: {type(error).__name__}: {error}",
            hint=hint,
        ) from error
