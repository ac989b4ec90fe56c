"""Shards as safetensors files, whose content is named tensors; the key is in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mtkd.storage.sharded_output import Footer

_LARGEST_HEADER = 1 << 24


class SafetensorsFormat:
    """Files of named tensors. With the key "" the header records none: the directory's name identifies it."""

    def write(self, path: Path, content: Mapping[str, Tensor], key: str) -> None:
        """Write the tensors."""
        tensors = {name: values.contiguous() for name, values in content.items()}
        save_file(tensors, path, metadata={"key": key} if key else None)

    def read_footer(self, path: Path) -> Footer | None:
        """The key, if the file is as long as its header says."""
        try:
            header, start = read_header(path)
            key = header.pop("__metadata__", {}).get("key", "")
            end = max(entry["data_offsets"][1] for entry in header.values())
            return Footer(key) if path.stat().st_size == start + end else None
        except (OSError, ValueError, KeyError):
            return None


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and where the data begins.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a safetensors file.
    """
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST_HEADER:
            raise ValueError("no safetensors header")
        return json.loads(file.read(size)), 8 + size
