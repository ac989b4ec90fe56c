"""Benchmark reading shuffled batches of 32 rows from a knowledge store.

With a warm page cache, the store is compared with `datasets` in numpy format holding the same arrays. With a
cold cache, block-wise reads from the store are compared with random reads from a memory map.

    python scripts/bench_store_read.py --rows 200000
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import torch
from measuring import report

from mtkd.knowledge_store.contents import Contents
from mtkd.knowledge_store.shard_files import plan_shards
from mtkd.knowledge_store.store_manifest import STORE_FORMAT, StoreManifest, StoreTask, StoreTeacher
from mtkd.knowledge_store.stored_teacher import StoredTeacher
from mtkd.output_files.safetensors_shards import SafetensorsFormat
from mtkd.output_files.sharded_output import ShardedOutput
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.selection import Selection
from mtkd.training.batches import AHEAD
from tasks.tokens.sampler import TaskSampler

SHAPES = {"(1, 9, 0.1)": (1, 9, 0.1), "(3, 8, 0.2)": (3, 8, 0.2)}


def synthetic(directory: Path, shape: tuple[int, int, float], rows: int) -> StoreManifest:
    """Write a store of random outputs for one task with 8 to 60 tokens per row."""
    depth, tokens, width = shape
    selection = Selection(tokens, "att-last-no-sep", width, scored=tuple((n, n) for n in range(1, depth + 1)))
    need = OutputSpec(logits=True, selected=frozenset(range(1, depth + 1)), selection=selection)
    contents = Contents.of(need, "fp16", EncoderSpec("bert", 12, 768, 768, 12, 768, OutputSpec()), 128)
    random = np.random.default_rng(0)
    kept_tokens = np.minimum(random.integers(6, 58, rows), tokens)
    n_kept = selection.n_kept_activations(768)
    shards = plan_shards("rte", rows, None, tokens * depth * (2 * n_kept + 97))
    output = ShardedOutput(directory, "bench", shards, SafetensorsFormat())
    for shard in shards:
        n = int(kept_tokens[shard.rows].sum())
        values = random.standard_normal((n, depth, n_kept))
        bits = np.zeros((n, depth, 768), bool)
        bits[..., :n_kept] = True
        tensors = {
            "logits": torch.zeros(len(shard.rows), 2),
            "kept": torch.from_numpy(kept_tokens[shard.rows].astype(np.int32)),
            "selected.positions": torch.from_numpy(random.integers(0, 60, (n, depth)).astype(np.uint8)),
            "selected.values": torch.from_numpy(values.astype(np.float16)),
            "selected.activations": torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little")),
            "tokens": torch.zeros(len(shard.rows), dtype=torch.int32),
        }
        output.write_shard(shard, tensors)
    entry = StoreTask("rte", rows, "", 2)
    teacher = StoreTeacher("bench", None, "", "fp32")
    return StoreManifest(STORE_FORMAT, "", "", {}, teacher, contents, None, "", (entry,), output.entries())


def positions_of(manifest: StoreManifest, rows: int) -> np.ndarray:
    """The position of each row in the store."""
    order = np.concatenate([shard.rows for shard in plan_shards("rte", rows, None, 0)])
    positions = np.empty(rows, np.int64)
    positions[order] = np.arange(rows)
    return positions


def rows_per_second(read: Callable[[np.ndarray], Any], draws: list[np.ndarray]) -> float:
    """The speed of a function that reads batches of rows."""
    started = time.perf_counter()
    for indices in draws:
        read(indices)
    return sum(map(len, draws)) / (time.perf_counter() - started)


def bench_warm(directory: Path, manifest: StoreManifest, draws: list[np.ndarray], rounds: int) -> None:
    """Compare the store with `datasets`, both from the page cache."""
    import datasets

    datasets.disable_progress_bars()
    rows = manifest.tasks[0].rows
    positions = positions_of(manifest, rows)
    source = StoredTeacher(directory, manifest, manifest.contents.offers, {"rte": positions})
    source.read("rte", np.arange(rows))  # fill the page cache and check all digests
    table = _table(manifest, directory, datasets)
    some = draws[: max(200, len(draws) // 20)]
    warm: dict[str, list[float]] = {"store": [], "datasets, numpy format": []}
    for _ in range(rounds):
        warm["store"].append(rows_per_second(partial(source.read, "rte"), draws))
        warm["datasets, numpy format"].append(rows_per_second(partial(_read_table, table, positions), some))
    for who, rates in warm.items():
        report(f"warm, {who}", "datasets", rates, warm["datasets, numpy format"], "rows/s")


def bench_cold(directory: Path, manifest: StoreManifest, draws: list[np.ndarray], rounds: int) -> None:
    """Compare block-wise reads of the store with random reads of a memory map, with an empty page cache."""
    rows, size = manifest.tasks[0].rows, manifest.bytes
    plain, width = directory / "plain.bin", size // rows
    np.zeros((rows, width), np.uint8).tofile(plain)
    before = psutil.Process().memory_info().rss / 1e6
    cold: dict[str, list[float]] = {"store": [], "memory map at random": []}
    for number in range(rounds):
        _drop_from_page_cache([directory / shard.file for shard in manifest.shards])
        new_source = StoredTeacher(
            directory, manifest, manifest.contents.offers, {"rte": positions_of(manifest, rows)}
        )
        started = time.perf_counter()
        for n, indices in enumerate(draws):
            new_source.read_ahead("rte", draws[min(n + AHEAD, len(draws) - 1)])
            new_source.read("rte", indices)
        cold["store"].append(size / 1e6 / (time.perf_counter() - started))
        _drop_from_page_cache([plain])
        mapped = np.memmap(plain, np.uint8, "r", shape=(rows, width))
        picked = np.random.default_rng(number).integers(0, rows, (40, 32))
        started = time.perf_counter()
        for indices in picked:
            mapped[indices].sum()
        cold["memory map at random"].append(picked.size * width / 1e6 / (time.perf_counter() - started))
        del mapped
    more = psutil.Process().memory_info().rss / 1e6 - before
    print(f"  reading the whole store from a cold cache: {more:.0f} MB of additional memory")
    for who, rates in cold.items():
        report(f"cold, {who}", "memory map", rates, cold["memory map at random"], "MB/s")


def _table(manifest: StoreManifest, directory: Path, datasets: Any) -> Any:
    """The same arrays as a dataset on disk, with every row padded to the maximum number of tokens."""
    from mtkd.knowledge_store.shard_files import Shard

    selection = manifest.contents.need.selection
    assert selection is not None and selection.tokens is not None
    max_tokens = selection.tokens

    def rows() -> Any:
        for entry in manifest.shards:
            shard = Shard(directory / entry.file)
            for n, start in enumerate(shard.offsets["kept"][:-1]):
                stop = min(start + max_tokens, len(shard.views["selected.values"]))
                row = {"kept": int(shard.views["kept"][n]), "logits": shard.views["logits"][n]}
                for name in ("positions", "values", "activations"):
                    part = shard.views[f"selected.{name}"][start:stop]
                    padded = np.zeros((max_tokens, *part.shape[1:]), part.dtype)
                    padded[: len(part)] = part
                    row[name] = padded.reshape(-1)
                yield row

    depth, kept = len(manifest.contents.need.selected), selection.n_kept_activations(768)
    sizes = {"positions": ("uint8", 1), "values": ("float16", kept), "activations": ("uint8", 96)}
    features = datasets.Features(
        {
            "kept": datasets.Value("int32"),
            "logits": datasets.Sequence(datasets.Value("float32"), 2),
            **{
                k: datasets.Sequence(datasets.Value(t), max_tokens * depth * n) for k, (t, n) in sizes.items()
            },
        }
    )
    cache = str(directory / "cache")
    return datasets.Dataset.from_generator(rows, features=features, cache_dir=cache).with_format("numpy")


def _read_table(table: Any, positions: np.ndarray, indices: np.ndarray) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in table[positions[indices]].items()}


def _drop_from_page_cache(files: list[Path]) -> None:
    """Drop files from the page cache."""
    os.sync()
    for file in files:
        with open(file, "rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--rows", default=200_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(rows: int, rounds: int) -> None:
    """Print speeds and ratios."""
    lengths = {"rte": np.random.default_rng(1).integers(8, 60, rows)}
    draws = [draw.indices for draw in TaskSampler(lengths, 32, blocks=True).epoch(0)]
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as home:
            manifest = synthetic(Path(home), shape, rows)
            print(f"read {name}: {rows:,} rows, {manifest.bytes / 1e6:.0f} MB")
            bench_warm(Path(home), manifest, draws, rounds)
            bench_cold(Path(home), manifest, draws, rounds)


if __name__ == "__main__":
    main()
