"""Run `mtkd` in two processes, of which the second is slow or has another clock."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from mtkd.cli.main import main
from mtkd.training import loop, trainer
from mtkd.training.run_directory import RunDirectory


def second_loads_late(*words: str) -> None:
    """Run `mtkd` with a second process that is slow to load the weights of the best epoch."""
    load_file = trainer.load_file

    def slow(*args: Any) -> Any:
        time.sleep(1)
        return load_file(*args)

    if os.environ["RANK"] == "1":
        trainer.load_file = slow  # type: ignore[assignment]
    main()


def second_clock_is_fast(*words: str) -> None:
    """Run `mtkd` with a second process whose clock advances an hour with every second."""
    if os.environ["RANK"] == "1":
        loop.time = SimpleNamespace(monotonic=lambda: 3600 * time.monotonic())  # type: ignore[assignment]
    main()


def second_sees_a_finished_run(*words: str) -> None:
    """Run `mtkd` with a second process for which the run looks finished before it starts."""
    inspect = RunDirectory.__init__

    def inspect_late(self: RunDirectory, *args: Any, **options: Any) -> None:
        inspect(self, *args, **options)
        self._before = {"status": "finished"}
        self.check_inputs = lambda **inputs: None  # type: ignore[method-assign]

    if os.environ["RANK"] == "1":
        RunDirectory.__init__ = inspect_late  # type: ignore[method-assign]
    main()
