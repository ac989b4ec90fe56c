"""Build knowledge stores, and repair damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from mtkd import __version__
from mtkd.device import keep_memory
from mtkd.jobs.knowledge_store.prepare_store import PreparedStore, prepare_store
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.knowledge_store.contents import LogitsLayout
from mtkd.knowledge_store.row_index import write_rows
from mtkd.knowledge_store.shard_writer import StoreSpec, check_scores, write_missing_shards
from mtkd.knowledge_store.store_manifest import (
    MANIFEST,
    STORE_FORMAT,
    STORE_KIND,
    StoreManifest,
    StoreTask,
    StoreTeacher,
    damaged_shards,
    read_store_manifest,
)
from mtkd.output_files.distributed import ProcessGroup
from mtkd.output_files.output_directory import open_directory
from mtkd.output_files.sharded_output import DIGEST, PlannedShard
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from mtkd.teachers.teacher_ref import name_with_digest
from mtkd.torch_state import with_torch_defaults
from mtkd.training.processes import make_accelerator
from tasks.common.digests import damaged_files, write_digests
from tasks.common.errors import UserError
from tasks.common.records import check_record
from tasks.common.remote import with_local_paths
from tasks.common.shards import ShardEntry


@with_torch_defaults
def build_store(
    request: StoreRequest,
    out: Path,
    command: str,
    *,
    workers: Workers = THIS_PROCESS,
    overwrite: bool = False,
    warn: Warn = ignore_warning,
) -> tuple[StoreManifest, PreparedStore, int]:
    """Build a store, or the missing part of an unfinished one.

    Args:
        command: the command line that is recorded in the manifest.
        workers: what computes the shards; the output does not depend on it.
        warn: called with each warning about the rows.

    Returns:
        The manifest, the prepared store, and the number of shards that were written now.

    Raises:
        UserError: as for `prepare_store`; `out` holds something else, or another process is writing to it;
            there is not enough disk space; or an output of the teacher is not finite.
    """
    prepared = prepare_store(request)
    for text in prepared.warnings if make_accelerator().is_main_process else ():
        warn(text)
    written_shards = _write(prepared, out, command, workers, overwrite=overwrite)
    return read_store_manifest(out), prepared, len(written_shards)


@with_torch_defaults
def repair_store(
    out: Path,
    workers: Workers = THIS_PROCESS,
) -> tuple[StoreManifest, list[str]]:
    """Rebuild the damaged files of a store.

    Returns:
        The manifest, and the files that were rebuilt.

    Raises:
        UserError: the teacher, tokeniser or rows differ from those that the store was built with.
    """
    manifest = read_store_manifest(out)
    damaged = damaged_shards(out, manifest)
    if not damaged and not any(out.glob(f"shards/*{DIGEST}")):  # a repair that was killed leaves such files
        return manifest, []
    prepared = prepare_store(
        check_record(with_local_paths(dict(manifest.options)), StoreRequest, f"{out / MANIFEST}, options")
    )
    if prepared.spec.key != manifest.key:
        raise UserError(
            f"the store {out} cannot be repaired: {_difference(manifest, prepared)}",
            hint="restore the inputs that it was built with, or build it again with `overwrite=True`",
        )
    _write(prepared, out, manifest.command, workers)
    return read_store_manifest(out), list(damaged)


def _write(
    prepared: PreparedStore, out: Path, command: str, workers: Workers, *, overwrite: bool = False
) -> list[PlannedShard]:
    """Write the missing or damaged shards, then the rest of the store; returns the shards written now."""
    spec, accelerator = prepared.spec, make_accelerator()
    group = ProcessGroup.of(accelerator)
    load = prepared.teacher.loader(spec.contents.max_length) if workers.in_other_processes else None
    device = torch.device("cpu") if load else accelerator.device

    def difference() -> str:
        if not (out / MANIFEST).is_file():
            return "it was started with other settings or rows"
        return _difference(read_store_manifest(out), prepared)

    with open_directory(out, STORE_KIND, spec.key, overwrite=overwrite, group=group, difference=difference):
        shards = read_store_manifest(out).shards if (out / MANIFEST).is_file() else ()
        recorded = {shard.file: shard.sha256 for shard in shards}
        if group.is_main and not recorded:
            _check_space(prepared, out)
            prepared.teacher.describe(out / "teacher", spec.contents.max_length)
        spec.teacher.to(device)
        check_scores(spec, device)
        with keep_memory():
            output, written_shards = write_missing_shards(
                spec, out, accelerator, recorded, workers=workers, load=load
            )
        if group.is_main and damaged_files(out / "teacher"):
            prepared.teacher.describe(out / "teacher", spec.contents.max_length)
        if group.is_main and (written_shards or not recorded or damaged_files(out / "rows")):
            _finish(prepared, out, output.entries(recorded), command)
    return written_shards


def _difference(manifest: StoreManifest, prepared: PreparedStore) -> str:
    """Say how a store differs from the requested one, for an error message."""
    spec, teacher = prepared.spec, manifest.teacher
    if teacher.digest != prepared.teacher.digest:
        requested = prepared.teacher
        return (
            f"its teacher is {name_with_digest(teacher.name, teacher.digest)}, not "
            f"{name_with_digest(requested.name, requested.digest)}"
        )
    if teacher.tokeniser != spec.teacher.tokeniser.digest:
        return (
            f"its tokeniser has the digest {teacher.tokeniser[:12]}, but that of {prepared.teacher.name} has "
            f"{spec.teacher.tokeniser.digest[:12]}"
        )
    if manifest.contents.max_length != spec.contents.max_length:
        return f"its rows have at most {manifest.contents.max_length} tokens, not {spec.contents.max_length}"
    rows = {task.name: task.digest for task in manifest.tasks}
    for name in dict.fromkeys([*rows, *spec.digests]):
        if rows.get(name) != spec.digests.get(name):
            return (
                f"its {name} rows have the digest {str(rows.get(name))[:12]}, not "
                f"{str(spec.digests.get(name))[:12]} (other `data`, `limit` or `corpus`)"
            )
    return "it was built with another recipe, `settings`, `dtype`, `precision` or `batch`"


def _check_space(prepared: PreparedStore, out: Path) -> None:
    """Raise UserError if the disk has not enough free space for the store."""
    written = sum(file.stat().st_size for file in (out / "shards").glob("*.safetensors"))
    free = shutil.disk_usage(out).free
    if prepared.bytes - written > free:
        raise UserError(
            f"the store needs {prepared.bytes:,} bytes, but {out} has only {free:,} free",
            hint="limit it with `budget='SIZE'`, or halve it with `dtype='int8'`; see `mtkd.plan_store`",
        )


def _finish(prepared: PreparedStore, out: Path, shards: tuple[ShardEntry, ...], command: str) -> None:
    """Write the row index, then the manifest, which marks the store as finished."""
    spec, teacher_ref = prepared.spec, prepared.teacher
    for name, rows in prepared.rows.items():
        write_rows(out, rows, [shard for shard in spec.shards if shard.task == name])
    write_digests(out / "rows")
    StoreManifest(
        STORE_FORMAT,
        __version__,
        command,
        prepared.request.options() | {"sets": prepared.request.sets | prepared.chosen, "budget": None},
        StoreTeacher(teacher_ref.name, teacher_ref.digest, spec.teacher.tokeniser.digest, spec.precision),
        spec.contents,
        prepared.corpus,
        spec.key,
        tuple(_store_task(spec, name, len(rows)) for name, rows in prepared.rows.items()),
        shards,
    ).write(out)


def _store_task(spec: StoreSpec, name: str, count: int) -> StoreTask:
    """The manifest's entry for a task; `count`: the number of its rows."""
    logits = LogitsLayout.of(spec.tasks[name])
    return StoreTask(name, count, spec.digests[name], logits.count, logits.per)
