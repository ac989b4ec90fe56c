"""Connecting to a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError, reason_of


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one on this machine, until the end of the block."""
    previous_handler = signal.getsignal(signal.SIGTERM)
    # Ray reports dead workers on standard output, which is only for the results of the command
    with contextlib.redirect_stdout(sys.stderr):
        # Without an address, Ray would connect to the last cluster of this machine, even if that has crashed
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            _require_server(address)
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError) as error:  # Ray's ConnectionError is an OSError
            if "AuthenticationError" in str(error.__cause__):
                raise UserError(
                    f"the Ray cluster at {address!r} requires a token",
                    hint="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token has the token",
                ) from error
            raise UserError(
                f"there is no Ray cluster at {address!r}: {reason_of(error)}",
                hint="start one with `ray start --head`, or leave `address` out",
            ) from error
        # Ray's own handler would end the process before unfinished files are removed
        _handle_sigterm(_exit_on_signal if previous_handler == signal.SIG_DFL else previous_handler)
        try:
            yield
        finally:
            ray.shutdown()
            _handle_sigterm(previous_handler)


def _require_server(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT; Ray itself would try for many minutes.

    Args:
        address: HOST:PORT, or "auto" for the last cluster of this machine, whose address Ray keeps in a file.
    """
    tmp = os.environ.get("RAY_TMPDIR") or (sys.platform == "linux" and os.environ.get("TMPDIR")) or "/tmp"
    current = Path(tmp, "ray", "ray_current_cluster")
    if address == "auto" and current.is_file():
        address = current.read_text(encoding="utf-8").strip()
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _handle_sigterm(handler: Any) -> None:
    """Set the handler of SIGTERM; only the main thread can."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _exit_on_signal(number: int, frame: Any) -> None:
    """Exit by an exception, so that `finally` blocks run."""
    raise SystemExit(128 + number)
