"""The knowledge store against what people do without one; BERT-base shaped teacher with random weights.

- train: steps of the students 4x312 and ROSITA6 in turn, batch 16: with the teacher in memory and from the
  store, same loss and padding; and the whole stack (stored, bucketed, bf16) against all hidden states online.
- read: shuffled task batches of 32 rows from a warm page cache, against `datasets` in numpy format with the
  same arrays; and from a cold file in blocks, against random reads of a memory map.
- build: writing a store against the bare forward pass of the teacher on the same batches.
- start: seconds from the command line to the first step of a student.

    python scripts/bench_store.py ../shared/data
    python scripts/bench_store.py ../shared/data --part read --rows 200000
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import torch

from mtkd.engine.feed import TaskFeed
from mtkd.engine.importance import measure_importance
from mtkd.engine.trainer import Trainer, make_accelerator
from mtkd.model import ModelInfo, MultiTaskModel
from mtkd.recipes import load_settings
from mtkd.records import Need, Shape
from mtkd.selection import Selection
from mtkd.stages import plan as planning
from mtkd.stages.common import Request
from mtkd.stages.data import load_training_data, trainable_tasks
from mtkd.stages.store import build
from mtkd.stages.store_plan import StoreRequest, prepare
from mtkd.store.build import batches, build_shards
from mtkd.store.contents import Contents
from mtkd.store.manifest import FORMAT, StoreManifest, StoreShard, StoreTask, StoreTeacher, read_manifest
from mtkd.store.shards import plan_shards, write_shard
from mtkd.store.stored import StoredTeacher, locate
from mtkd.students.hf_config import DEFAULT_TEACHER, TransformerConfig
from mtkd.students.hf_config import locate as encoder_place
from mtkd.students.transformer import TransformerEncoder
from mtkd.teacher.source import OnlineTeacher
from tasks.batching import Collator, Encoded
from tasks.files import digest_file
from tasks.registry import resolve
from tasks.sampler import TaskSampler
from tasks.tokenise import Tokeniser

TASKS = "rte,mrpc,stsb,sst2"  # together about 40 tokens a row
BERT_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
PART = {"terms.hidden.depth": 1, "terms.hidden.tokens": 9, "terms.hidden.width": 0.1}
ALL = {"terms.hidden.depth": None, "terms.hidden.tokens": None, "terms.hidden.width": 1.0}
SHAPES = {"(1, 9, 0.1)": (1, 9, 0.1), "(3, 8, 0.2)": (3, 8, 0.2)}


def save_teacher(place: Path) -> None:
    """A BERT-base shaped model with heads for the tasks."""
    torch.manual_seed(0)
    tokeniser = Tokeniser.load(encoder_place(DEFAULT_TEACHER))
    config = TransformerConfig(hf={"model_type": "bert", "vocab_size": tokeniser.vocab_size, **BERT_BASE})
    MultiTaskModel(TransformerEncoder(config), resolve(TASKS), tokeniser, ModelInfo(128, 0)).save(place)


def request(data: str, teacher: Path, recipe: str, rows: int) -> StoreRequest:
    return StoreRequest(recipe, data, TASKS, str(teacher), dict(PART), limit=rows, batch=16)


def trainer(
    data: str,
    teacher: Path,
    store: Path | None,
    recipe: str,
    rows: int,
    place: Path,
    pad: bool,
    dropout: float,
    **changes: Any,
) -> Trainer:
    """A trainer of the recipe's first stage; `store` None = the teacher in memory."""
    fixed = {"train.batch_size": 16, "train.warmup": 0.0, "student.transformer.dropout": dropout}
    sets = {**PART, **fixed, **changes}
    settings = load_settings(recipe, "distill", sets)
    tasks = trainable_tasks(TASKS)
    rows_of = load_training_data(Request(data, TASKS, place, rows, 8), tasks)
    checked = planning.check(settings, str(teacher), tasks, store)

    def importance(model: MultiTaskModel) -> Any:
        some = {
            p.task.name: Encoded.encode(p.train, model.tokeniser).take(np.arange(8)) for p in rows_of.parts
        }
        return measure_importance(model, rows_of.tasks, some, 8)

    planned = planning.load(checked, importance=importance)
    stage, objective = checked.stages[0]
    if store:
        manifest = read_manifest(store)
        places = {part.task.name: locate(store, manifest, part.train) for part in rows_of.parts}
        source: Any = StoredTeacher(store, manifest, objective.teacher_need, places)
    else:
        source = OnlineTeacher(planned.teacher, objective.teacher_need)  # type: ignore[arg-type]
    reader = planned.student.reader
    encoded = {part.task.name: Encoded.encode(part.train, reader.tokeniser) for part in rows_of.parts}
    collate = Collator(reader, reader, pad_to=128 if pad else None)
    train = stage.train.model_copy(update={"bucket": not pad})
    feed = TaskFeed(rows_of.tasks, encoded, collate, train)
    made = Trainer(
        make_accelerator(train), planned.student, objective, feed, train, place, evaluate=None, teacher=source
    )
    made.start()
    made.inner.train()
    return made


def steps(made: Trainer, count: int | None, number: int) -> float:
    """Rows a second over so many steps of an epoch, or all."""
    draws = list(made.feed.epoch(number, 0))[:count]
    started = time.perf_counter()
    for draw in draws:
        made.step(draw)
        made.position.step += 1
    return sum(len(draw.indices) for draw in draws) / (time.perf_counter() - started)


def bench_train(data: str, home: Path, rows: int, rounds: int, dropout: float) -> None:
    teacher = home / "teacher"
    for recipe in ("hsk-tinybert-4", "hsk-rosita-6"):
        store = home / recipe
        build(request(data, teacher, recipe, rows), store, "bench")
        some: tuple[Any, ...] = (data, teacher)
        variants: dict[str, tuple[Trainer, int | None]] = {}
        for name, at, pad, changes, count in (
            ("online, all hidden states, padded to 128", None, True, ALL, 3),
            ("online, the part, padded to 128", None, True, {}, 3),
            ("stored, the part, padded to 128", store, True, {}, 12),
            ("stored, in buckets", store, False, {}, None),
            ("stored, in buckets, bf16", store, False, {"train.precision": "bf16"}, None),
        ):
            place = home / f"{recipe}-{len(variants)}"
            variants[name] = trainer(*some, at, recipe, rows, place, pad, dropout, **changes), count
        speeds: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds + 1):
            for name, (made, count) in variants.items():
                speed = steps(made, count if number else 2, number)
                if number:
                    speeds[name].append(speed)
        print(f"train {recipe}: batches of 16, {rows} rows a task, dropout {dropout}")
        for base in list(variants)[:2]:
            for name, found in speeds.items():
                _report(name, base, found, speeds[base], "rows/s")


def _report(name: str, base: str, found: list[float], against: list[float], unit: str) -> None:
    ratios = [a / b for a, b in zip(found, against, strict=True)]
    print(
        f"  {name:42} {statistics.median(found):10.1f} {unit}; against {base!r}: "
        f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def synthetic(place: Path, shape: tuple[int, int, float], rows: int) -> StoreManifest:
    """A store of random knowledge of one task, 8 to 60 tokens a row."""
    depth, tokens, width = shape
    selection = Selection(tokens, "att-last-no-sep", width, scored=tuple((n, n) for n in range(1, depth + 1)))
    need = Need(logits=True, selected=frozenset(range(1, depth + 1)), selection=selection)
    contents = Contents.of(need, "fp16", Shape("bert", 12, 768, 768, 12, 768, Need()), 128)
    random = np.random.default_rng(0)
    kept = np.minimum(random.integers(6, 58, rows), tokens)
    units = selection.kept_units(768)
    shards = []
    for shard in plan_shards("rte", rows, None, tokens * depth * (2 * units + 97)):
        n = int(kept[shard.rows].sum())
        bits = np.zeros((n, depth, 768), bool)
        bits[..., :units] = True
        tensors = {
            "logits": torch.zeros(len(shard.rows), 2),
            "kept": torch.from_numpy(kept[shard.rows].astype(np.int32)),
            "selected.positions": torch.from_numpy(random.integers(0, 60, (n, depth)).astype(np.uint8)),
            "selected.values": torch.from_numpy(random.standard_normal((n, depth, units)).astype(np.float16)),
            "selected.units": torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little")),
            "tokens": torch.zeros(len(shard.rows), dtype=torch.int32),
        }
        path = place / shard.file
        write_shard(path, tensors, "bench")
        size = path.stat().st_size
        shards.append(StoreShard(shard.file, "rte", len(shard.rows), digest_file(path), size))
    entry = StoreTask("rte", rows, "", 2)
    teacher = StoreTeacher("bench", None, "", "fp32")
    return StoreManifest(FORMAT, "", "", {}, teacher, contents, None, "", (entry,), tuple(shards))


def places_of(manifest: StoreManifest, rows: int) -> np.ndarray:
    """Where each row lies in the store's order."""
    order = np.concatenate([shard.rows for shard in plan_shards("rte", rows, None, 0)])
    places = np.empty(rows, np.int64)
    places[order] = np.arange(rows)
    return places


def rows_a_second(read: Callable[[np.ndarray], Any], draws: list[np.ndarray]) -> float:
    started = time.perf_counter()
    for indices in draws:
        read(indices)
    return sum(map(len, draws)) / (time.perf_counter() - started)


def bench_read(home: Path, rows: int, rounds: int) -> None:
    import datasets

    datasets.disable_progress_bars()
    for name, shape in SHAPES.items():
        place = home / f"read-{shape[0]}"
        manifest = synthetic(place, shape, rows)
        size = manifest.bytes
        need = manifest.contents.offers
        places = places_of(manifest, rows)
        lengths = {"rte": np.random.default_rng(1).integers(8, 60, rows)}
        draws = [draw.indices for draw in TaskSampler(lengths, 32, blocks=True).epoch(0)]
        source = StoredTeacher(place, manifest, need, {"rte": places})
        source.read("rte", np.arange(rows))  # into the page cache, and each shard's digest checked
        table = _table(manifest, place, datasets)
        print(f"read {name}: {rows:,} rows, {size / 1e6:.0f} MB")
        readers: dict[str, tuple[Callable[[np.ndarray], Any], list[np.ndarray]]] = {
            "store": (partial(source.read, "rte"), draws),
            "datasets, numpy format": (
                partial(_of_table, table, places),
                draws[: max(200, len(draws) // 20)],
            ),
        }
        warm: dict[str, list[float]] = {who: [] for who in readers}
        for _ in range(rounds):
            for who, (read, some) in readers.items():
                warm[who].append(rows_a_second(read, some))
        for who, found in warm.items():
            _report(f"warm, {who}", "datasets", found, warm["datasets, numpy format"], "rows/s")
        plain = place / "plain.bin"
        width = size // rows
        np.zeros((rows, width), np.uint8).tofile(plain)
        del source, table, readers, read
        before = psutil.Process().memory_info().rss / 1e6
        cold: dict[str, list[float]] = {"store": [], "memory map at random": []}
        for number in range(rounds):
            _forget([place / shard.file for shard in manifest.shards])
            fresh = StoredTeacher(place, manifest, need, {"rte": places})
            feed = [*draws, *[draws[-1]] * 64]

            def ahead(n: int, fresh: StoredTeacher = fresh, feed: list = feed) -> dict[str, torch.Tensor]:
                fresh.read_ahead("rte", feed[n + 64])
                return fresh.read("rte", feed[n])

            started = time.perf_counter()
            for n in range(len(draws)):
                ahead(n)
            cold["store"].append(size / 1e6 / (time.perf_counter() - started))
            _forget([plain])
            mapped = np.memmap(plain, np.uint8, "r", shape=(rows, width))
            picked = np.random.default_rng(number).integers(0, rows, (40, 32))
            started = time.perf_counter()
            for indices in picked:
                mapped[indices].sum()
            cold["memory map at random"].append(picked.size * width / 1e6 / (time.perf_counter() - started))
            del mapped
        more = psutil.Process().memory_info().rss / 1e6 - before
        print(f"  reading it all from the cold: {more:.0f} MB more in memory than before")
        for who, found in cold.items():
            _report(f"cold, {who}", "memory map", found, cold["memory map at random"], "MB/s")
        shutil.rmtree(place)


def _table(manifest: StoreManifest, place: Path, datasets: Any) -> Any:
    """The same arrays as a dataset on disk, every row padded to the most tokens."""
    from mtkd.store.shards import Shard

    selection = manifest.contents.need.selection
    assert selection is not None and selection.tokens is not None
    most = selection.tokens

    def rows() -> Any:
        for entry in manifest.shards:
            shard = Shard(place / entry.file)
            for n, start in enumerate(shard.offsets["kept"][:-1]):
                stop = min(start + most, len(shard.views["selected.values"]))
                found = {"kept": int(shard.views["kept"][n]), "logits": shard.views["logits"][n]}
                for name in ("positions", "values", "units"):
                    part = shard.views[f"selected.{name}"][start:stop]
                    whole = np.zeros((most, *part.shape[1:]), part.dtype)
                    whole[: len(part)] = part
                    found[name] = whole.reshape(-1)
                yield found

    depth, units = len(manifest.contents.need.selected), selection.kept_units(768)
    sizes = {"positions": ("uint8", 1), "values": ("float16", units), "units": ("uint8", 96)}
    features = datasets.Features(
        {
            "kept": datasets.Value("int32"),
            "logits": datasets.Sequence(datasets.Value("float32"), 2),
            **{k: datasets.Sequence(datasets.Value(t), most * depth * n) for k, (t, n) in sizes.items()},
        }
    )
    cache = str(place / "cache")
    return datasets.Dataset.from_generator(rows, features=features, cache_dir=cache).with_format("numpy")


def _of_table(table: Any, places: np.ndarray, indices: np.ndarray) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in table[places[indices]].items()}


def _forget(files: list[Path]) -> None:
    """Drop files from the page cache."""
    os.sync()
    for file in files:
        with open(file, "rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench_build(data: str, home: Path, rows: int, rounds: int) -> None:
    prepared = prepare(request(data, home / "teacher", "hsk-tinybert-4", rows))
    job = prepared.job
    accelerator = make_accelerator(load_settings("hsk-tinybert-4", "distill", {}).train)
    collate = Collator(job.teacher.reader)
    bare: list[float] = []
    for precision in ("fp32", "bf16"):
        built, plain = [], []
        for number in range(rounds):
            out = home / f"built-{precision}-{number}"
            started = time.perf_counter()
            build_shards(replace(job, precision=precision), out, accelerator)
            built.append(rows * len(job.tasks) / (time.perf_counter() - started))
            started = time.perf_counter()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                for shard in job.shards:
                    encoded = job.data[shard.task].take(shard.rows)
                    for batch in batches(encoded, collate, job.batch_size):
                        job.teacher(batch.inputs, shard.task)
            plain.append(rows * len(job.tasks) / (time.perf_counter() - started))
        bare = bare or plain
        print(f"build in {precision}: {rows} rows a task")
        _report("bare forward pass", "bare forward pass", plain, plain, "rows/s")
        _report("store build", "bare forward pass", built, plain, "rows/s")
        _report("store build", "bare forward pass, fp32", built, bare, "rows/s")


def bench_start(data: str, home: Path, rows: int, rounds: int) -> None:
    store = home / "hsk-tinybert-4"
    if not store.exists():
        build(request(data, home / "teacher", "hsk-tinybert-4", rows), store, "bench")
    seconds = []
    for number in range(rounds):
        out = home / f"start-{number}"
        words = ["distill", "hsk-tinybert-4", "--store", str(store), "--data", data, "--tasks", TASKS]
        words += ["--limit", str(rows), "--eval-limit", "64", "--steps", "1", "--out", str(out)]
        started = time.time()
        subprocess.run(
            [sys.executable, "-m", "mtkd.cli.main", *words], check=True, capture_output=True, env=os.environ
        )
        first = out / "stages" / "hidden" / "log.jsonl"
        assert json.loads(first.read_text().splitlines()[0])["step"] == 1
        seconds.append(first.stat().st_mtime - started)
    least, most = min(seconds), max(seconds)
    print(f"start: first step after {statistics.median(seconds):.1f} s ({least:.1f} to {most:.1f})")


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("data")
@click.option("--part", "parts", type=click.Choice(["train", "read", "build", "start"]), multiple=True)
@click.option("--rows", default=128, show_default=True, help="rows a task; of `read` in all")
@click.option("--rounds", default=3, show_default=True)
@click.option("--dropout", default=0.1, show_default=True, help="of the students that `train` trains")
def main(data: str, parts: tuple[str, ...], rows: int, rounds: int, dropout: float) -> None:
    """Print speeds and ratios."""
    chosen = parts or ("train", "read", "build", "start")
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        if set(chosen) != {"read"}:
            save_teacher(home / "teacher")
        if "train" in chosen:
            bench_train(data, home, rows, rounds, dropout)
        if "read" in chosen:
            bench_read(home, max(rows, 100_000), rounds)
        if "build" in chosen:
            bench_build(data, home, rows, rounds)
        if "start" in chosen:
            bench_start(data, home, rows, rounds)


if __name__ == "__main__":
    main()
