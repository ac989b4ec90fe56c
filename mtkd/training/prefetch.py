"""Preparing the next items of an iterator in a thread while the current items are in use."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")
CHUNK_SIZE = 8  # items


@contextlib.contextmanager
def prefetched(items: Iterator[Item], chunk_size: int = CHUNK_SIZE) -> Iterator[Iterator[Item]]:
    """The same items in the same order, computed by a thread that ends with the `with` block.

    The thread computes a chunk of items at a time. If it handed over every item alone, the two threads would
    wait for each other (for Python's global lock) longer than a batch takes to prepare.

    Args:
        chunk_size: items per chunk. One chunk is in use, one is ready, and one is being prepared.

    Raises:
        Exception: any exception of `items`, at the position of the failed item.
    """
    ready: queue.Queue[tuple[list[Item], bool, BaseException | None]] = queue.Queue(1)
    stopped = threading.Event()

    def produce() -> None:
        chunk: list[Item] = []
        try:
            for item in items:
                chunk.append(item)
                if len(chunk) == chunk_size:
                    ready.put((chunk, False, None))
                    chunk = []
                if stopped.is_set():
                    return
            ready.put((chunk, True, None))
        except BaseException as error:
            ready.put((chunk, True, error))

    def consume() -> Iterator[Item]:
        is_last = False
        while not is_last:
            chunk, is_last, error = ready.get()
            yield from chunk
            if error is not None:
                raise error

    thread = threading.Thread(target=produce, name="batches", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()
        thread.join()
