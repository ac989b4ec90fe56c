"""Building knowledge stores, and mending them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from accelerate import Accelerator

from mtkd import __version__
from mtkd.device import keep_memory
from mtkd.jobs.plan_store import Prepared, StoreRequest, prepare
from mtkd.store.contents import Outputs
from mtkd.store.row_index import write_rows
from mtkd.store.shard_writer import StoreJob, build_shards, check_scores
from mtkd.store.store_manifest import (
    BUILDING,
    FORMAT,
    MANIFEST,
    StoreManifest,
    StoreShard,
    StoreTask,
    StoreTeacher,
    read_manifest,
    verify,
)
from mtkd.training.processes import make_accelerator
from tasks.errors import UserError
from tasks.files import digest_file, is_temporary, locked, read_json, write_json


def build(
    request: StoreRequest, out: Path, command: str, *, overwrite: bool = False
) -> tuple[StoreManifest, Prepared, int]:
    """Build a store, or what is missing of it.

    Returns:
        its manifest, what was built, and how many shards were made now.

    Raises:
        UserError: as `prepare`; another store or something else is in `out`, or another process writes there;
            too little space; a value of the teacher that is not finite.
    """
    prepared = prepare(request)
    accelerator = make_accelerator()
    main = accelerator.is_main_process
    with locked(out) if main else contextlib.nullcontext():
        done = _make_room(out, prepared, overwrite=overwrite) if main else False
        if not done and main:
            prepared.teacher.describe(out / "teacher", prepared.job.contents.max_length)
            write_json(out / BUILDING, {"format": FORMAT, "key": prepared.job.key, "command": command})
        made = _run(prepared, out, accelerator)
        if main and not (done and not made):
            _finish(prepared, out, command)
        accelerator.wait_for_everyone()
    return read_manifest(out), prepared, made


def repair(out: Path) -> tuple[StoreManifest, list[str]]:
    """Make the damaged shards of a store anew.

    Returns:
        its manifest, and the files that were made.

    Raises:
        UserError: teacher, tokeniser or rows are not those it was built with.
    """
    manifest = read_manifest(out)
    bad = verify(out, manifest, digest=True)
    if not bad:
        return manifest, []
    prepared = prepare(StoreRequest(**manifest.options))
    accelerator = make_accelerator()
    main = accelerator.is_main_process
    with locked(out) if main else contextlib.nullcontext():
        if prepared.job.key != manifest.key:
            raise UserError(
                f"the store {out} cannot be repaired: {_difference(manifest, prepared)}",
                hint="put back what it was built with, or build it anew with --overwrite",
            )
        for shard, _ in bad if main else ():
            (out / shard.file).unlink(missing_ok=True)
        _run(prepared, out, accelerator)
        if main:
            _finish(prepared, out, manifest.command)
        accelerator.wait_for_everyone()
    return read_manifest(out), [shard.file for shard, _ in bad]


def _run(prepared: Prepared, out: Path, accelerator: Accelerator) -> int:
    """Make the missing shards; how many they were."""
    accelerator.wait_for_everyone()
    job = prepared.job
    job.teacher.to(accelerator.device)
    check_scores(job, accelerator.device)
    with keep_memory():
        made, _ = build_shards(job, out, accelerator)
    return made


def _difference(manifest: StoreManifest, prepared: Prepared) -> str:
    """How a store differs from a request for one, in words."""
    job, teacher = prepared.job, manifest.teacher
    if teacher.digest != prepared.teacher.digest:
        here = prepared.teacher
        return (
            f"its teacher is {teacher.name} (digest {(teacher.digest or 'of the hub')[:12]}), "
            f"the one here is {here.name} (digest {(here.digest or 'of the hub')[:12]})"
        )
    if teacher.tokeniser != job.teacher.tokeniser.digest:
        return (
            f"its tokeniser has the digest {teacher.tokeniser[:12]}, that of {prepared.teacher.name} "
            f"{job.teacher.tokeniser.digest[:12]}"
        )
    if manifest.contents.max_length != job.contents.max_length:
        return f"its rows have at most {manifest.contents.max_length} tokens, here {job.contents.max_length}"
    rows = {task.name: task.digest for task in manifest.tasks}
    for name in dict.fromkeys([*rows, *job.digests]):
        if rows.get(name) != job.digests.get(name):
            return (
                f"its {name} rows have the digest {str(rows.get(name))[:12]}, those here "
                f"{str(job.digests.get(name))[:12]} (other --data, --limit or --corpus)"
            )
    return "it keeps other knowledge (recipe, --set, --dtype, --precision or --batch)"


def _make_room(out: Path, prepared: Prepared, *, overwrite: bool) -> bool:
    """Refuse a directory that is not ours to write; True if the store is there already, whole."""
    finished, begun = (out / MANIFEST).is_file(), (out / BUILDING).is_file()
    if not finished and not begun and any(not is_temporary(file) for file in out.iterdir()):
        raise UserError(
            f"{out} is not empty and holds no knowledge store", hint="choose another --out, or empty it"
        )
    there = read_manifest(out).key if finished else read_json(out / BUILDING)["key"] if begun else None
    if there is not None and there != prepared.job.key:
        if not overwrite:
            problem = _difference(read_manifest(out), prepared) if finished else "it was begun otherwise"
            raise UserError(
                f"{out} holds another knowledge store: {problem}",
                hint="--overwrite drops it, or choose another --out",
            )
        for left in (MANIFEST, BUILDING):
            (out / left).unlink(missing_ok=True)
        for folder in ("shards", "rows", "teacher"):
            shutil.rmtree(out / folder, ignore_errors=True)
        finished = False
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    bad = verify(out, read_manifest(out), digest=True) if finished else []
    for shard, _ in bad:
        (out / shard.file).unlink(missing_ok=True)
    whole = finished and not bad
    written = sum(file.stat().st_size for file in (out / "shards").glob("*.safetensors"))
    free = shutil.disk_usage(out).free
    if not whole and prepared.bytes - written > free:
        raise UserError(
            f"the store needs {prepared.bytes:,} bytes, and {out} has {free:,} free",
            hint="--budget SIZE keeps the best part that fits, --dtype int8 halves it; "
            "`mtkd store plan` tells more",
        )
    return whole


def _finish(prepared: Prepared, out: Path, command: str) -> None:
    """Write what says which row lies where, and last the manifest."""
    job, reference = prepared.job, prepared.teacher
    for name, rows in prepared.rows.items():
        write_rows(out, rows, [shard for shard in job.shards if shard.task == name])
    entries = []
    for shard in job.shards:
        path = out / shard.file
        size = path.stat().st_size
        entries.append(StoreShard(shard.file, shard.task, len(shard.rows), digest_file(path), size))
    StoreManifest(
        FORMAT,
        __version__,
        command,
        prepared.request.options() | {"sets": prepared.request.sets | prepared.chosen, "budget": None},
        StoreTeacher(reference.name, reference.digest, job.teacher.tokeniser.digest, job.precision),
        job.contents,
        prepared.corpus,
        job.key,
        tuple(_store_task(job, name, len(rows)) for name, rows in prepared.rows.items()),
        tuple(entries),
    ).write(out)
    (out / BUILDING).unlink(missing_ok=True)


def _store_task(job: StoreJob, name: str, count: int) -> StoreTask:
    outputs = Outputs.of(job.tasks[name])
    return StoreTask(name, count, job.digests[name], outputs.count, outputs.per)
