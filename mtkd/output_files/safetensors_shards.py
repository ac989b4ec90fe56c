"""Shards as safetensors files of named tensors, with the key in the header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mtkd.output_files.sharded_output import Footer
from tasks.common.files import directory_for
from tasks.common.reading import is_lfs_pointer, not_regular


class SafetensorsFormat:
    """Files of named tensors. The key "" is not recorded, for outputs identified by their directory name."""

    def write(self, path: Path, content: Mapping[str, Tensor], key: str) -> None:
        """Write the tensors."""
        tensors = {name: values.contiguous() for name, values in content.items()}
        with directory_for(path) as file:
            save_file(tensors, file, metadata={"key": key} if key else None)

    def read_footer(self, path: Path) -> Footer | None:
        """Read the key; None if the file is missing or damaged."""
        try:
            return Footer(read_header(path).metadata.get("key", ""))
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its type as safetensors names it, its shape, and where its bytes start."""

    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Header:
    """What a safetensors file holds: tensors by name, and other texts by name."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file, and compare it with the file's size.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a safetensors file, or its header does not describe its content.
    """
    if problem := not_regular(path):
        raise ValueError(f"it {problem}")
    if is_lfs_pointer(path):
        raise ValueError("it is a Git LFS pointer; `git lfs pull` downloads the file")
    try:
        with safe_open(path, "np"):  # checks the header
            pass
    except SafetensorError as error:
        raise ValueError(f"it is not a safetensors file ({error})") from error
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = from_json(file.read(size))
    metadata = entries.pop("__metadata__", {})
    tensors = {
        name: StoredTensor(entry["dtype"], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
        for name, entry in entries.items()
    }
    return Header(tensors, metadata)
