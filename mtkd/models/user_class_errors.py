"""Errors inside losses and encoders that are not part of mtkd: they name the class."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from tasks.common.errors import UserError

# Kinds of errors -> how to fix the most frequent mistake behind them.
Hints = Mapping[tuple[type[Exception], ...], str]


def class_of(module: nn.Module) -> type:
    """The class of a module, also if FSDP has replaced it by a subclass."""
    return next(base for base in type(module).__mro__ if not base.__module__.startswith("torch."))


def is_user_class(kind: type) -> bool:
    """True if a class is not part of mtkd."""
    return kind.__module__.partition(".")[0] != "mtkd"


@contextlib.contextmanager
def user_class_errors(what: str, kind: type, hints: Hints) -> Iterator[None]:
    """Raise a UserError that names the class for an error inside the block; the error itself is its cause.

    Errors of mtkd's own classes, and those about memory, are not changed.

    Args:
        what: what the class is, such as "the loss 'cosine'".
        hints: an error of another kind has no hint.
    """
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # foreign code can raise anything
        if not is_user_class(kind):
            raise
        module = kind.__module__
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_globals.get("__name__") == module]
        line = f", line {lines[-1]}" if lines else ""
        raise UserError(
            f"{what} ({module}:{kind.__qualname__}{line}) failed: {type(error).__name__}: {error}",
            hint=next((hint for kinds, hint in hints.items() if isinstance(error, kinds)), None),
        ) from error
