"""Shards as safetensors files of named tensors, with the key in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mtkd.output_files.sharded_output import Footer
from tasks.common.reading import not_regular


class SafetensorsFormat:
    """Files of named tensors. The key "" is not recorded, for outputs identified by their directory name."""

    def write(self, path: Path, content: Mapping[str, Tensor], key: str) -> None:
        """Write the tensors."""
        tensors = {name: values.contiguous() for name, values in content.items()}
        save_file(tensors, path, metadata={"key": key} if key else None)

    def read_footer(self, path: Path) -> Footer | None:
        """Read the key; None if the file is missing or its length does not match its header."""
        try:
            header, start = read_header(path)
            key = header.pop("__metadata__", {}).get("key", "")
            end = max(entry["data_offsets"][1] for entry in header.values())
            return Footer(key) if path.stat().st_size == start + end else None
        except (OSError, ValueError, KeyError):
            return None


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file, and the offset at which the data begin.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a safetensors file, or its header does not describe its content.
    """
    if problem := not_regular(path):
        raise ValueError(f"it {problem}")
    try:
        with safe_open(path, "np"):  # checks the header
            pass
    except SafetensorError as error:
        raise ValueError(f"it is not a safetensors file ({error})") from error
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size
