"""Preparing the next items of an iterator in a thread while the current item is in use."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")
DEPTH = 4  # items in the queue


@contextlib.contextmanager
def prefetched(items: Iterator[Item], depth: int = DEPTH) -> Iterator[Iterator[Item]]:
    """The same items in the same order, computed by a thread that ends with the `with` block.

    Args:
        depth: maximum number of items to prepare in advance.

    Raises:
        Exception: any exception of `items`, at the position of the failed item.
    """
    ready: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                ready.put((True, item))
                if stopped.is_set():
                    return
            ready.put((False, None))
        except BaseException as error:
            ready.put((False, error))

    def consume() -> Iterator[Item]:
        while True:
            has_item, item = ready.get()
            if isinstance(item, BaseException):
                raise item
            if not has_item:
                return
            yield item  # type: ignore[misc]

    thread = threading.Thread(target=produce, name="batches", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                ready.get_nowait()
        thread.join()
