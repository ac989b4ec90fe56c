"""Write the files of `mtkd init`, and replace or remove those that an earlier call wrote."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mtkd.pipelines.init_files import OUTPUTS
from mtkd.pipelines.step_records import PIPELINE_RECORD
from tasks.common.errors import UserError
from tasks.common.files import atomic_path, check_output_file
from tasks.common.locks import locked
from tasks.common.reading import real_path
from tasks.common.records import Record, read_record, write_record
from tasks.common.sha256 import digest_file
from tasks.common.urls import as_url

INIT_RECORD = ".mtkd-init.json"
_FileName = Annotated[str, Field(pattern=r"^[^/\\]*[^/\\.]\z")]  # in the directory itself


@dataclass(frozen=True)
class _Written(Record):
    """What earlier calls wrote.

    Attributes:
        files: the name of each file -> its digest.
        sources: the absolute path of each file whose rows were copied -> its digest at that time.
    """

    files: dict[_FileName, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def write_files(
    out: Path,
    contents: Mapping[str, bytes],
    inputs: Collection[Path],
    sources: Mapping[Path, str],
    overwrite: bool,
    dry_run: bool,
) -> list[str]:
    """Write files to a directory, and remove other files that earlier calls wrote there.

    Args:
        contents: the name of each file -> its bytes.
        inputs: the files that were read, which must not be replaced.
        sources: those of them whose rows are copied -> their digests.
        overwrite: replace files of earlier calls that have other contents, and remove those not written now.
            Files that the user has edited are kept under another name (`pipeline.toml.bak`).
        dry_run: write nothing.

    Returns:
        A note about each edited file that is (or would be) kept under another name, and about each file of an
        earlier call that is not removed, which says why.

    Raises:
        UserError: an input would be replaced, a file that no earlier call wrote, or any file without
            `overwrite`.
    """
    paths = {out / name: raw for name, raw in contents.items()}
    if overwritten_inputs := [path for path in paths if real_path(path) in inputs]:
        raise UserError(
            f"{overwritten_inputs[0]} would be overwritten with some of its own rows",
            hint="choose another directory with `out`",
        )
    for path in paths:
        check_output_file(path)
    # A file that already has this content was written by the same call before it was killed.
    replaced_files = [path for path, raw in paths.items() if path.exists() and path.read_bytes() != raw]
    if replaced_files and not overwrite:
        raise UserError(
            f"{', '.join(map(str, replaced_files))} would be replaced",
            hint="choose another directory with `out`, or replace them with `overwrite=True` (files that you "
            "have edited are then kept as FILE.bak)",
        )
    record = out / INIT_RECORD
    written = read_record(record, _Written).files if record.is_file() else {}
    if foreign := [path for path in replaced_files if path.name not in written]:
        raise UserError(
            f"{foreign[0]} would be replaced, and is not a file that `mtkd.init_pipeline` wrote",
            hint="choose another directory with `out`",
        )
    edited = [path for path in replaced_files if digest_file(path) != written[path.name]]
    copies = {path: _unused_name(path) for path in edited}
    earlier = {name: digest for name, digest in written.items() if name not in contents}
    present = {name: digest for name, digest in earlier.items() if (out / name).is_file()}
    why_kept = {name: _why_kept(out / name, present[name], inputs, overwrite) for name in sorted(present)}
    notes = [
        f"you have edited {path.name}: it is replaced, and your version is kept as {copy.name}"
        for path, copy in copies.items()
    ]
    notes += [
        f"{name}, which an earlier call wrote, is not removed: {why}"
        for name, why in why_kept.items()
        if why is not None
    ]
    if dry_run:
        return notes
    files = {name: hashlib.sha256(raw).hexdigest() for name, raw in contents.items()}
    with locked(out):
        for path, copy in copies.items():
            path.rename(copy)
        digests = {as_url(str(real_path(path))): digest for path, digest in sources.items()}
        write_record(record, {"files": earlier | files, "sources": digests})
        for path, raw in paths.items():
            with atomic_path(path) as temporary:
                temporary.write_bytes(raw)
        for name in [name for name, why in why_kept.items() if not why]:
            (out / name).unlink()
        kept = {name: digest for name, digest in present.items() if why_kept[name]}
        write_record(record, {"files": kept | files, "sources": digests})
    return notes


def _unused_name(path: Path) -> Path:
    """The name under which an edited file is kept: FILE.bak, or FILE.bak2 if that exists."""
    names = (path.with_name(f"{path.name}.bak{n if n > 1 else ''}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def changed_sources(files: Iterable[Path], digest_of: Callable[[Path], str]) -> Iterator[Path]:
    """The files that have changed since `mtkd init` copied their rows to some of `files`.

    Args:
        digest_of: returns the digest of a file.
    """
    by_folder: dict[Path, set[str]] = {}
    for file in files:
        by_folder.setdefault(file.parent, set()).add(file.name)
    for folder, names in by_folder.items():
        record = folder / INIT_RECORD
        written = read_record(record, _Written) if record.is_file() else _Written()
        if any(name in written.files and name.endswith(".parquet") for name in names):
            for source, digest in written.sources.items():
                if Path(source).is_file() and digest_of(Path(source)) != digest:
                    yield Path(source)


def _why_kept(path: Path, digest: str, inputs: Collection[Path], overwrite: bool) -> str | None:
    """Why a file of an earlier call is not removed; None if it is.

    Args:
        digest: of the bytes that the earlier call wrote.
    """
    if real_path(path) in inputs:
        return "its rows are used again"
    if digest_file(path) != digest:
        return "you have edited it"
    return None if overwrite else "that needs `overwrite=True`"


def earlier_runs_notes(pipeline: Path) -> list[str]:
    """A note if a pipeline that is to be written will replace the output of an earlier one."""
    runs = pipeline.parent / OUTPUTS
    if not (runs / PIPELINE_RECORD).is_file():
        return []
    return [
        f"{runs} holds the output of an earlier pipeline, which `mtkd run` replaces where a step differs: "
        f"to keep it, set another out = '...' in {pipeline}"
    ]
