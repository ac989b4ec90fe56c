"""Paths of local copies in place of URLs (docs/scale.md).

A copy is made before a command works on it. Only this module, `mirror` and `mtkd.output_files.remote_paths`
read or write URLs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tasks.common.locks import locked
from tasks.common.mirror import Mirror
from tasks.common.urls import IN_TEXT, url_of

_copied: ContextVar[dict[str, Path] | None] = ContextVar("_copied", default=None)


@contextlib.contextmanager
def consistent_copies() -> Iterator[None]:
    """Inside the block, each URL is compared with its copy once, so that all reads find the same files."""
    before = _copied.set(dict(_copied.get() or {}))
    try:
        yield
    finally:
        _copied.reset(before)


def local_copy(url: str) -> Path:
    """The local copy of what a URL names; of a pattern such as s3://bucket/*.csv, the pattern of the copies.

    Raises:
        UserError: it does not exist or cannot be read, or the package that reads such URLs is missing.
    """
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    copies = _copied.get()
    if copies is None or url not in copies:
        mirror = Mirror.of(url, "inputs")
        with locked(mirror.folder, wait=True):
            mirror.pull(mirror.versions())
        if copies is None:
            return mirror.path
        copies[url] = mirror.path
    return copies[url]


def with_local_paths(value: Any) -> Any:
    """A value with paths of local copies in place of URLs: a text, a path, or a list or mapping of them."""
    if isinstance(value, Path):
        url = url_of(value)
        return local_copy(url) if url else value
    if isinstance(value, str):
        return IN_TEXT.sub(lambda match: str(local_copy(match[0])), value)
    if isinstance(value, Mapping):
        return {key: with_local_paths(part) for key, part in value.items()}
    return type(value)(with_local_paths(part) for part in value) if isinstance(value, list | tuple) else value
