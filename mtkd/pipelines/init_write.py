"""Write the files of `mtkd init`, and replace or remove those that an earlier call wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mtkd.pipelines.init_files import OUTPUTS
from mtkd.pipelines.step_records import RECORD_FILE as RUN_RECORD
from tasks.common.errors import UserError
from tasks.common.files import atomic_path, check_output_file
from tasks.common.locks import locked
from tasks.common.reading import real_path
from tasks.common.records import Record, read_record, write_record
from tasks.common.sha256 import digest_file

RECORD_FILE = ".mtkd-init.json"
_FileName = Annotated[str, Field(pattern=r"^[^/\\]*[^/\\.]\z")]  # in the directory itself


@dataclass(frozen=True)
class _Written(Record):
    """What earlier calls wrote: the name of each file and its digest."""

    files: dict[_FileName, str] = field(default_factory=dict)


def write_files(
    out: Path, contents: Mapping[str, bytes], inputs: Collection[Path], overwrite: bool, dry_run: bool
) -> list[str]:
    """Write files to a directory, and remove other files that earlier calls wrote there.

    Args:
        contents: the name of each file -> its bytes.
        inputs: the files that were read, which must not be replaced.
        overwrite: replace files of earlier calls that have other contents, and remove those not written now.
        dry_run: write nothing.

    Returns:
        The names of the files of earlier calls that are not (or would not be) removed.

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
            hint="choose another directory with `out`, or replace them with `overwrite=True`",
        )
    record = out / RECORD_FILE
    written = read_record(record, _Written).files if record.is_file() else {}
    if foreign := [path for path in replaced_files if path.name not in written]:
        raise UserError(
            f"{foreign[0]} would be replaced, and is not a file that `mtkd.init_pipeline` wrote",
            hint="choose another directory with `out`",
        )
    earlier = {name: digest for name, digest in written.items() if name not in contents}
    present = {name: digest for name, digest in earlier.items() if (out / name).is_file()}
    unread = {name for name in present if real_path(out / name) not in inputs}
    removed = {name for name in unread if overwrite and digest_file(out / name) == present[name]}
    if dry_run:
        return sorted(present.keys() - removed)
    files = {name: hashlib.sha256(raw).hexdigest() for name, raw in contents.items()}
    with locked(out):
        write_record(record, {"files": earlier | files})
        for path, raw in paths.items():
            with atomic_path(path) as temporary:
                temporary.write_bytes(raw)
        for name in sorted(removed):
            (out / name).unlink()
        kept = {name: digest for name, digest in present.items() if name not in removed}
        write_record(record, {"files": kept | files})
    return sorted(kept)


def earlier_runs_notes(pipeline: Path) -> list[str]:
    """A note if a pipeline that is to be written will replace the output of an earlier one."""
    runs = pipeline.parent / OUTPUTS
    if not (runs / RUN_RECORD).is_file():
        return []
    return [
        f"{runs} holds the output of an earlier pipeline, which `mtkd run` replaces where a step differs: "
        f"to keep it, set another out = '...' in {pipeline}"
    ]
