"""URLs such as s3://bucket/data, and the paths of the local copies that stand for them.

Only `tasks.common.remote`, `tasks.common.mirror` and `mtkd.output_files.remote_paths` read or write URLs;
everything else works on local paths. The path of a copy ends with its URL
(inputs/0123456789abcdef/s3/bucket/data), so that records, errors and status lines can name the URL instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+"
IN_TEXT = re.compile(rf"{_SCHEME}://[^,]*")  # also after a comma or `TASK=`
_AT_START = re.compile(rf"({_SCHEME}):/+")


def cache_directory() -> Path:
    """Where copies and converted models are kept: $MTKD_CACHE, by default ~/.cache/mtkd."""
    directory = os.environ.get("MTKD_CACHE") or "~/.cache/mtkd"
    return Path(os.path.expanduser(directory)).resolve()  # Path.expanduser raises if there is no home


def as_url(text: str, kinds: str = "inputs|outputs") -> str:
    """A text with URLs in place of the paths of local copies."""
    if "puts/" not in text:
        return text
    copies = re.escape(str(cache_directory()))
    return re.sub(rf"{copies}/(?:{kinds})/[0-9a-f]{{16}}/([^/\s]+)/", r"\1://", text)


def with_urls(value: Any) -> Any:
    """JSON values with URLs in place of the paths of local copies."""
    if isinstance(value, dict):
        return {with_urls(key): with_urls(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_urls(part) for part in value]
    return as_url(value) if isinstance(value, str) else value


def url_of(value: Any) -> str | None:
    """The value if it is a URL, or the URL of the output whose local copy it names; None for others."""
    if not isinstance(value, str | Path):
        return None
    text = as_url(str(value), "outputs")
    match = _AT_START.match(text)
    if not match or not (isinstance(value, Path) or text.startswith(f"{match[1]}://")):
        return None
    scheme = match[1].lower()  # Path("s3://bucket/x") is s3:/bucket/x
    return f"{scheme}:{'///' if scheme == 'file' else '//'}{text[match.end() :]}"
