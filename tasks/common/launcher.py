"""The environment variables that a launcher (torchrun, `accelerate launch`) sets for each process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tasks.common.errors import UserError, brief

_HINT = "start the command with torchrun or `accelerate launch`, or unset the variable"


@dataclass(frozen=True)
class ProcessRank:
    """The place of this process among those that a launcher started; one process without a launcher.

    It only holds what the environment variables say. `mtkd.output_files.distributed.ProcessGroup` is for
    processes that have joined, and can wait for each other.

    Attributes:
        rank: the number of this process, from 0.
        count: how many processes there are.
        on_this_machine: how many of them run on this machine; 1 if the launcher does not say it.
    """

    rank: int = 0
    count: int = 1
    on_this_machine: int = 1


def process_rank() -> ProcessRank:
    """The place of this process, by WORLD_SIZE, RANK and LOCAL_WORLD_SIZE.

    Raises:
        UserError: a variable is not a number in its range.
    """
    count = _number("WORLD_SIZE", 1, 1)
    if count == 1:
        return ProcessRank()
    return ProcessRank(_number("RANK", 0, 0, count - 1), count, _number("LOCAL_WORLD_SIZE", 1, 1, count))


def check_process_rank() -> ProcessRank:
    """Like `process_rank`, but also check the variables that the processes need to find each other.

    Raises:
        UserError: a variable is missing or invalid.
    """
    here = process_rank()
    if here.count > 1:
        needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in needed if not os.environ.get(name)]:
            raise UserError(
                f"WORLD_SIZE is {here.count}, but {' and '.join(missing)} {_are(missing)} not set", hint=_HINT
            )
        _number("MASTER_PORT", 0, 1, 65_535)
    elif os.environ.get("LOCAL_RANK", "-1") not in ("-1", "0") and "WORLD_SIZE" not in os.environ:
        raise UserError("LOCAL_RANK is set, but WORLD_SIZE is not", hint=_HINT)
    _number("LOCAL_RANK", -1, -1)
    return here


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _number(variable: str, default: int, low: int, high: int = 2**31) -> int:
    """An integer in the environment."""
    text = os.environ.get(variable)
    if text is None:
        return default
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()) or not (
        low <= int(text[:12]) <= high
    ):
        upper = f" to {high}" if high < 2**31 else " or more"
        raise UserError(
            f"the environment variable {variable} is {brief(text)}",
            expected=f"an integer, {low}{upper}",
            hint=_HINT,
        )
    return int(text)
