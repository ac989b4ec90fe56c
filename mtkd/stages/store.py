"""Knowledge stores: how large one will be, building it, mending it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from mtkd import __version__
from mtkd.config import DistillSettings, TrainSettings
from mtkd.engine.trainer import make_accelerator
from mtkd.recipes import load_settings
from mtkd.records import Need
from mtkd.selection import Selection
from mtkd.stages.common import Request
from mtkd.stages.data import TrainingData, check_mask, load_training_data, trainable_tasks
from mtkd.stages.plan import Checked, check
from mtkd.stages.teacher import TeacherRef
from mtkd.store.build import StoreJob, batches, build_shards, check_scores, entry_counts
from mtkd.store.contents import Contents, Dtype, pack
from mtkd.store.manifest import (
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
from mtkd.store.plan import Counted, amount, choose, sizes
from mtkd.store.rows import table_bytes, write_rows
from mtkd.store.shards import plan_shards
from mtkd.teacher.source import OnlineTeacher
from tasks.batching import Collator, Encoded
from tasks.corpus import read_corpus
from tasks.errors import UserError
from tasks.files import digest_file, is_temporary, locked, read_json, write_json
from tasks.rows import Rows
from tasks.sources import digest_rows

_TIMED_BATCHES = 6


@dataclass(frozen=True)
class StoreRequest:
    """What a store is asked to hold.

    Attributes:
        recipe, sets: whose needs it serves.
        data, tasks, limit, corpus: of which rows.
        teacher: whose knowledge.
        dtype: of vectors on disk; precision: that the teacher is run in; batch: rows at a time.
        budget: bytes; the recipe's depth, tokens and width are then chosen to fit.
    """

    recipe: str
    data: str
    tasks: str
    teacher: str
    sets: dict[str, Any] = field(default_factory=dict)
    corpus: str | None = None
    limit: int | None = None
    dtype: Dtype = "fp16"
    precision: str = "fp32"
    batch: int = 32
    budget: int | None = None

    def options(self) -> dict[str, Any]:
        """What a repair needs to ask for the same again, whatever directory it is run from."""

        def absolute(name: str | None) -> str | None:
            return str(Path(name).resolve()) if name and Path(name).exists() else name

        places = {key: absolute(getattr(self, key)) for key in ("data", "teacher", "corpus")}
        return asdict(self) | places


@dataclass(frozen=True)
class Prepared:
    """A store that could be built: rows read, teacher loaded.

    Attributes:
        chosen: settings that the budget chose, dotted name -> value.
        sizes: predicted bytes by kind of knowledge.
    """

    request: StoreRequest
    settings: DistillSettings
    teacher: TeacherRef
    rows: dict[str, Rows]
    job: StoreJob
    corpus: str | None
    chosen: dict[str, Any]
    sizes: dict[str, int]
    student_layers: int

    @property
    def bytes(self) -> int:
        """Predicted, of the whole store."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class Plan:
    """What a store would be.

    Attributes:
        tokens: real ones of all rows.
        seconds: that the teacher is estimated to take.
        units: AHSK of a full-length row, and of the full set; None where no part is selected.
    """

    prepared: Prepared
    rows: int
    tokens: int
    free: int
    seconds: float
    units: tuple[float, int] | None


def prepare(request: StoreRequest) -> Prepared:
    """Check a request, read its rows, load the teacher.

    Raises:
        UserError: anything wrong with recipe, data, teacher or corpus; a budget that is too small.
    """
    tasks = trainable_tasks(request.tasks)
    settings = load_settings(request.recipe, "distill", request.sets, request.tasks)
    checked = check(settings, request.teacher, tasks)
    need, reference = checked.teacher_need, checked.teacher
    if need == Need() or reference is None:
        raise UserError(
            f"{settings.name} asks nothing of a teacher, so there is nothing to store",
            mend="choose a recipe that distils, without supervision=labels",
        )
    corpus = Path(request.corpus) if request.corpus else None
    data = load_training_data(Request(request.data, request.tasks, Path(), request.limit, 1), tasks, corpus)
    teacher = reference.load(settings.student.max_length if checked.need.tokens else None)
    if corpus:
        check_mask(corpus, {"teacher": teacher})
    encoded = {part.task.name: Encoded.encode(part.train, teacher.tokeniser) for part in data.parts}
    contents = Contents.of(need, request.dtype, reference.config.shape, teacher.info.max_length)
    tables = sum(table_bytes(part.train) for part in data.parts)
    chosen: dict[str, Any] = {}
    if request.budget is not None:
        counts = {
            n: _counted(replace_tokens(contents, 1), teacher, data, rows) for n, rows in encoded.items()
        }
        chosen = _choose(request.budget, settings, checked, contents, counts, tables)
        settings = load_settings(request.recipe, "distill", request.sets | chosen, request.tasks)
        need = check(settings, request.teacher, tasks).teacher_need
        contents = Contents.of(need, request.dtype, reference.config.shape, teacher.info.max_length)
    counted = {name: _counted(contents, teacher, data, rows) for name, rows in encoded.items()}
    shards = []
    for name, rows in encoded.items():
        row_bytes = sum(sizes(contents, {name: counted[name]}, 0, 0).values()) / max(1, len(rows))
        shards += plan_shards(name, len(rows), rows.groups, row_bytes)
    job = StoreJob(
        teacher,
        contents,
        data.tasks,
        encoded,
        {part.task.name: digest_rows(part.train) for part in data.parts},
        shards,
        request.precision,
        request.batch,
        (reference.digest, teacher.tokeniser.digest),
    )
    key = read_corpus(corpus).key if corpus else None
    rows_of = {part.task.name: part.train for part in data.parts}
    predicted = sizes(contents, counted, len(shards), tables)
    return Prepared(
        request, settings, reference, rows_of, job, key, chosen, predicted, checked.student.layers
    )


def replace_tokens(contents: Contents, tokens: int) -> Contents:
    """The same contents with another number of tokens."""
    need = contents.need
    selection = replace(need.selection, tokens=tokens) if need.selection else None
    return replace(contents, need=replace(need, selection=selection))


def _counted(contents: Contents, teacher: Any, data: TrainingData, rows: Encoded) -> Counted:
    selection = contents.need.selection
    everything = replace_tokens(contents, 1 << 30) if selection and selection.tokens else contents
    tokens, eligible = entry_counts(everything, teacher, rows)
    return Counted(data.tasks[rows.task].n_outputs, tokens, eligible)


def _choose(
    budget: int,
    settings: DistillSettings,
    checked: Checked,
    contents: Contents,
    counted: Mapping[str, Counted],
    tables: int,
) -> dict[str, Any]:
    """The recipe's depth, tokens and width under a budget, as settings."""
    names = [name for name, term in settings.terms.items() if term.loss == "hidden_knowledge"]
    selection = contents.need.selection
    if not names or selection is None:
        raise UserError(
            f"--budget chooses how much of the hidden states is kept, and {settings.name} keeps none",
            allowed="recipes with a term hidden_knowledge, such as hsk-tinybert-4",
            mend="leave --budget out",
        )

    def size_of(depth: int, tokens: int, width: float) -> int:
        part: Selection = replace(selection, tokens=tokens, width=width)
        need = replace(contents.need, selected=frozenset(range(depth)), selection=part)
        return sum(sizes(replace(contents, need=need), counted, len(counted), tables).values())

    depth, tokens, width = choose(budget, checked.student.layers + 1, contents.max_length, size_of)
    values = {"depth": depth, "tokens": tokens, "width": width}
    return {f"terms.{name}.{key}": value for name in names for key, value in values.items()}


def plan(request: StoreRequest, out: Path) -> Plan:
    """What the store would hold and cost; nothing is written.

    Raises:
        UserError: as `prepare`.
    """
    prepared = prepare(request)
    job = prepared.job
    accelerator = make_accelerator(TrainSettings())
    job.teacher.to(accelerator.device)
    lengths = {name: job.teacher.reader.lengths(rows.texts) for name, rows in job.data.items()}
    selection = job.contents.need.selection
    units = None
    if selection is not None:
        most = job.contents.max_length
        depth, layers = len(job.contents.need.selected), prepared.student_layers + 1
        units = amount(depth, selection.tokens or most, selection.width), layers * most
    place = next(p for p in (out.resolve(), *out.resolve().parents) if p.exists())
    return Plan(
        prepared,
        sum(map(len, lengths.values())),
        int(sum(map(np.sum, lengths.values()))),
        shutil.disk_usage(place).free,
        _estimate(job, accelerator),
        units,
    )


def _estimate(job: StoreJob, accelerator: Accelerator) -> float:
    """Seconds that the teacher will take, from a few batches of all lengths."""
    source = OnlineTeacher(job.teacher, job.contents.need, job.precision)
    total = 0.0
    for name, rows in job.data.items():
        cut = list(batches(rows, Collator(job.teacher.reader), job.batch_size))
        share = max(1, _TIMED_BATCHES // len(job.data))
        picked = [cut[int((n + 0.5) * len(cut) / share)] for n in range(min(share, len(cut)))]
        pack(source.signal(job.tasks[name], picked[0].to(accelerator.device)), job.contents)  # warms up
        started = time.perf_counter()
        for batch in picked:
            pack(source.signal(job.tasks[name], batch.to(accelerator.device)), job.contents)
        total += (time.perf_counter() - started) / len(picked) * len(cut)
    return total


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
    accelerator = make_accelerator(TrainSettings())
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
    accelerator = make_accelerator(TrainSettings())
    main = accelerator.is_main_process
    with locked(out) if main else contextlib.nullcontext():
        if prepared.job.key != manifest.key:
            raise UserError(
                f"the store {out} cannot be repaired: {_difference(manifest, prepared)}",
                mend="put back what it was built with, or build it anew with --overwrite",
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
            f"{out} is not empty and holds no knowledge store", mend="choose another --out, or empty it"
        )
    there = read_manifest(out).key if finished else read_json(out / BUILDING)["key"] if begun else None
    if there is not None and there != prepared.job.key:
        if not overwrite:
            problem = _difference(read_manifest(out), prepared) if finished else "it was begun otherwise"
            raise UserError(
                f"{out} holds another knowledge store: {problem}",
                mend="--overwrite drops it, or choose another --out",
            )
        for left in (MANIFEST, BUILDING):
            (out / left).unlink(missing_ok=True)
        for folder in ("shards", "rows", "teacher"):
            shutil.rmtree(out / folder, ignore_errors=True)
        finished = False
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    whole = finished and not verify(out, read_manifest(out), digest=False)
    written = sum(file.stat().st_size for file in (out / "shards").glob("*.safetensors"))
    free = shutil.disk_usage(out).free
    if not whole and prepared.bytes - written > free:
        raise UserError(
            f"the store needs {prepared.bytes:,} bytes, and {out} has {free:,} free",
            mend="--budget SIZE keeps the best part that fits, --dtype int8 halves it; "
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
        tuple(
            StoreTask(name, len(rows), job.digests[name], job.tasks[name].n_outputs)
            for name, rows in prepared.rows.items()
        ),
        tuple(entries),
    ).write(out)
    (out / BUILDING).unlink(missing_ok=True)
