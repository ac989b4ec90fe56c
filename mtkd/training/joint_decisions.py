"""Decisions that all processes of a run make together: when to stop, and when to write a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from accelerate import Accelerator

from mtkd.training.callbacks import TrainingControl
from mtkd.training.interrupts import SignalWatch
from mtkd.training.processes import sum_over_processes


class JointDecisions:
    """Signals, stop requests and due checkpoints, about which all processes agree after `sync`.

    A signal may reach only some processes, only the main process has callbacks, and clocks differ. The
    processes exchange this together with numbers that they add up anyway, so that it costs no extra
    communication.

    Args:
        checkpoint_minutes: the longest time between two checkpoints.

    Attributes:
        control: what callbacks of this process request.
        signals: the signals that this process receives.
        received_signal: SIGINT or SIGTERM if any process had received it at the last `sync`, otherwise 0.
        save: whether it was time for another checkpoint on any process at the last `sync`.
    """

    def __init__(self, accelerator: Accelerator, checkpoint_minutes: float):
        self._accelerator, self._checkpoint_seconds = accelerator, 60 * checkpoint_minutes
        self.control, self.signals = TrainingControl(), SignalWatch()
        self.received_signal = 0
        self.save = False
        self._stop = False
        self._saved_at = time.monotonic()

    @property
    def stop(self) -> bool:
        """Whether a callback of any process had requested to stop at the last `sync`.

        A single process need not wait for the next `sync`.
        """
        return self.control.should_training_stop if self._accelerator.num_processes == 1 else self._stop

    def sync(self, numbers: Sequence[float] = ()) -> list[float]:
        """Decide together, and return sums of numbers over all processes; every process must call this."""
        received, stop = self.signals.number, self.control.should_training_stop
        late = time.monotonic() - self._saved_at > self._checkpoint_seconds
        flags = [received == signal.SIGINT, received == signal.SIGTERM, stop, late]
        sent = [*map(float, flags), *numbers]
        interrupt, terminate, stops, lates, *sums = sum_over_processes(self._accelerator, sent)
        self.received_signal = signal.SIGTERM if terminate else signal.SIGINT if interrupt else 0
        self._stop, self.save = stops > 0, lates > 0
        return sums

    def checkpoint_written(self) -> None:
        """Start counting the time to the next checkpoint."""
        self._saved_at = time.monotonic()
