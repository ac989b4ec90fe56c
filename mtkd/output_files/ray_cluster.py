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
    on_sigterm = signal.getsignal(signal.SIGTERM)
    # Ray prints to standard output that a worker has died, but that is for the results of the command
    with contextlib.redirect_stdout(sys.stderr):
        # Without an address, Ray would connect to the last cluster of this machine, even if it has crashed
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            _require_server(address)
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError) as error:  # among them Ray's ConnectionError
            if "AuthenticationError" in str(error.__cause__):
                raise UserError(
                    f"the Ray cluster at {address!r} requires a token",
                    hint="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token has the token",
                ) from error
            raise UserError(
                f"there is no Ray cluster at {address!r}: {reason_of(error)}",
                hint="start one with `ray start --head`, or leave `address` out",
            ) from error
        # Ray's handler ends the process before what is unfinished could be tidied up
        _on_sigterm(_exit_on_signal if on_sigterm == signal.SIG_DFL else on_sigterm)
        try:
            yield
        finally:
            ray.shutdown()
            _on_sigterm(on_sigterm)


def _require_server(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT; Ray itself would try for many minutes.

    Args:
        address: "auto" is that of the last cluster of this machine, which Ray keeps in a file.
    """
    tmp = os.environ.get("RAY_TMPDIR") or (sys.platform == "linux" and os.environ.get("TMPDIR")) or "/tmp"
    current = Path(tmp, "ray", "ray_current_cluster")
    if address == "auto" and current.is_file():
        address = current.read_text(encoding="utf-8").strip()
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _exit_on_signal(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)
