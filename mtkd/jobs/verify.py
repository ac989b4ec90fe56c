"""Verify: compare the files of runs, models, corpora, stores and exports with their recorded digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtkd.knowledge_store.store_manifest import MANIFEST, is_store
from mtkd.model_files import EXPORT
from mtkd.run_record import RUN_FILE, read_run_record
from tasks.common.digests import DIGESTS, damage_of, damaged_files
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.common.records import check_record, has_check, read_record
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry

_MALFORMED = "is not a list of digests as mtkd writes it, so the files that it lists could not be checked"
# Records that hold a digest of themselves, but not of other files.
_SELF_DIGESTED = (RUN_FILE, "result.json", "compare.json", "questions.json", "pipeline.json", "filter.json")


@dataclass
class Verified:
    """The files that were compared with their digests.

    Attributes:
        files: how many files were compared.
        damaged: path -> what is wrong with the file.
        hints: path -> how to restore this damaged file.
    """

    files: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values, without the hints."""
        return {"files": self.files, "damaged": self.damaged}


def verify(place: Path) -> Verified:
    """Compare each file below a directory with its recorded digest; files without one are skipped.

    Args:
        place: the directory of a run, model, corpus, store, export or question generator, or one that holds
            several of these.

    Raises:
        UserError: there is no such directory, or nothing in it has digests.
    """
    if not place.is_dir():
        raise UserError(f"there is no directory {place}", expected="a directory that mtkd wrote")
    names = (DIGESTS, MANIFEST, EXPORT, *_SELF_DIGESTED)
    records = [file for name in names for file in sorted(place.rglob(name))]
    result = Verified()
    with progress("verifying", len(records), unit="directories") as advance:
        for record in records:
            for file, problem in _problems(record).items():
                result.files += 1
                if problem:
                    path = record.parent / file
                    result.damaged[str(path)] = problem
                    result.hints[str(path)] = _hint(path, place)
            advance()
    if not result.files:
        raise UserError(
            f"{place} contains no files written by mtkd (no digests were found)",
            expected="a directory that mtkd wrote",
        )
    return result


def _problems(record: Path) -> Mapping[str, str | None]:
    """Each file whose digest a record holds -> what is wrong with the file; None if it is intact."""
    directory = record.parent
    try:
        content = read_record(record, dict[str, Any])
        if record.name in _SELF_DIGESTED:
            if has_check(record):
                return {record.name: None}
            if record.name == RUN_FILE and (directory / "model" / DIGESTS).is_file():  # a run of mtkd
                read_run_record(record, "identity")  # raises a UserError if it is damaged
            return {}
        if record.name == DIGESTS:
            damaged = set(damaged_files(directory))
            if DIGESTS in damaged:
                return {DIGESTS: _MALFORMED}
            return {
                file: damage_of(directory / file) if file in damaged else None for file in content["files"]
            }
        if record.name == MANIFEST:
            shards = [check_record(entry, ShardEntry, str(record)) for entry in content["shards"]]
            return {shard.file: shard.damage(directory, digest=True) for shard in shards}
        digests: dict[str, str] = content["files"]
        return {
            file: None if _is_intact(directory / file, digest) else damage_of(directory / file)
            for file, digest in digests.items()
        }
    except (UserError, TypeError, KeyError, AttributeError):
        return {record.name: damage_of(record)}


def _hint(file: Path, place: Path) -> str:
    """How to restore a damaged file below the directory `place`: repair its store, if it is part of one."""
    again = "restore it from a copy, or repeat the command that wrote it"
    for directory in file.parents:
        if is_store(directory):
            if file == directory / MANIFEST:
                return "restore it from a copy, or build the store again with `overwrite=True`"
            return f"`mtkd.repair_store({str(directory)!r})` rebuilds the damaged files; or {again}"
        if directory == place:
            break
    return again


def _is_intact(file: Path, digest: str) -> bool:
    return file.is_file() and digest_file(file) == digest
