"""Flip single bits in the output of mtkd, and check whether `mtkd verify` detects them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mtkd.jobs.verify import verify
from tasks.common.errors import UserError
from tasks.common.records import CHECK

# Never read back: pages, pictures, logs of commands, locks, and events (which have their own checksums).
# Or checked by their readers: cached vectors contain their digest, and the words of a command are compared.
_LEFT_OUT = re.compile(r".*\.(md|png|log\.txt|command\.json|lock)|.*tfevents.*|.*features/.*")


def files(directory: Path) -> list[Path]:
    """Return the files below a directory that mtkd reads back."""
    found = [file for file in sorted(directory.rglob("*")) if file.is_file() and file.stat().st_size]
    logs = [file.parent / "log.jsonl" for file in found if file.name == "questions.json"]  # not read either
    return [file for file in found if not _LEFT_OUT.fullmatch(str(file)) and file not in logs]


def undetected_flips(directory: Path, count: int, seed: int) -> Iterator[str]:
    """Flip `count` random bits, equally often in each file of a directory; yield the undetected ones."""
    random, named = np.random.default_rng(seed), files(directory)
    for number in range(count):
        file = named[number % len(named)]
        content = file.read_bytes()
        position, bit = int(random.integers(len(content))), int(random.integers(8))
        changed = bytearray(content)
        changed[position] ^= 1 << bit
        file.unlink()  # other hard links keep their content
        file.write_bytes(changed)
        try:
            noticed = bool(verify(directory).damaged)
        except UserError:
            noticed = True
        file.write_bytes(content)
        if not noticed and not (file.suffix == ".json" and same(content, bytes(changed))):
            yield f"{file.relative_to(directory)}: bit {bit} of byte {position}"


def same(one: bytes, other: bytes) -> bool:
    """Return whether two JSON files are equal except for the key of their digest."""
    try:
        values, changed = (json.loads(raw) for raw in (one, other))
    except ValueError:
        return False
    if not isinstance(values, dict) or not isinstance(changed, dict):
        return False
    values.pop(CHECK, None)
    return {key: changed[key] for key in changed if key in values} == values
