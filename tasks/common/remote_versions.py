"""Versions of remote files, by which a change is noticed without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What file systems call the version of a file's content, and the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "blob_id", "sha256", "checksum")
_TIMES: tuple[str, ...] = ("LastModified", "Last-Modified", "last_modified", "updated", "modified", "created")
_TIMES += ("mtime", "modify", "modificationTime")  # of SFTP, FTP and WebHDFS


def uploaded(version: str) -> str:
    """What the index has for a file that was uploaded, until the listing with its version has been read."""
    return f"{version.split()[0]} uploaded"


def version_of(about: Mapping[str, Any]) -> str | None:
    """The size and version of a file, from its metadata; None if that is not sufficient."""
    version = next((about[key] for key in (*_VERSIONS, *_TIMES) if about.get(key)), None)
    return None if version is None else f"{about.get('size')} {version}"
