"""Shards as safetensors files of named tensors, with the key in the header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypedDict

from mtkd.output_files.sharded_output import Footer
from tasks.common.errors import brief
from tasks.common.records import Count

_LARGEST_HEADER = 1 << 24
# Bytes of a number of each type that mtkd writes.
_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "I16": 2, "I32": 4}


class SafetensorsFormat:
    """Files of named tensors. The key "" is not recorded, for outputs identified by their directory name."""

    def write(self, path: Path, content: Mapping[str, Tensor], key: str) -> None:
        """Write the tensors."""
        tensors = {name: values.contiguous() for name, values in content.items()}
        save_file(tensors, path, metadata={"key": key} if key else None)

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


class _Entry(TypedDict):
    dtype: str
    shape: list[Count]
    data_offsets: Annotated[list[Count], Field(min_length=2, max_length=2)]


_ENTRIES = TypeAdapter(dict[str, _Entry])
_TABLE = TypeAdapter(dict[str, Any])
_METADATA = TypeAdapter(dict[str, str])


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file, and compare it with the file's size.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a safetensors file, or its header does not describe its content.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise FileNotFoundError(f"no such file: {path}")
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST_HEADER:
            raise ValueError("it has no safetensors header")
        raw = file.read(size)
    try:
        values = _TABLE.validate_python(from_json(raw))
        metadata = _METADATA.validate_python(values.pop("__metadata__", {}), strict=True)
        entries = _ENTRIES.validate_python(values, strict=True)
    except ValueError as error:
        raise ValueError(f"its safetensors header is damaged: {_reason(error)}") from None
    end = 0
    for name, entry in sorted(entries.items(), key=_begin):
        begin, stop = entry["data_offsets"]
        if begin != end or stop - begin != math.prod(entry["shape"]) * _SIZES.get(entry["dtype"], -1):
            raise ValueError(f"its safetensors header does not describe the bytes of {name!r}")
        end = stop
    if not entries or path.stat().st_size != 8 + size + end:
        raise ValueError("its length is not that of its safetensors header")
    tensors = {
        name: StoredTensor(entry["dtype"], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
        for name, entry in entries.items()
    }
    return Header(tensors, metadata)


def _begin(item: tuple[str, _Entry]) -> list[int]:
    return item[1]["data_offsets"]


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))} = {brief(first['input'])}"
