"""Benchmark mtkd's word-cached tokenisation of masked copies against the ordinary tokeniser calls.

Every round times each method once on the same copies, starting with an empty word cache, and checks that the
ids are equal.

    python scripts/bench_tokenise.py --data ../shared/data
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.models.encoders.pretrained_config import locate
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.tokens.tokeniser import Tokeniser

Lists = list[list[int]]


def masked_copies(texts: list[str], copies: int, p: float, mask: str) -> list[str]:
    """Make `copies` of each text, replacing each word by the mask token with probability p."""
    random = np.random.default_rng(0)
    masked = []
    for words in (text.split(" ") for text in texts):
        for hit in random.random((copies, len(words))) < p:
            masked.append(" ".join(np.where(hit, mask, words).tolist()))
    return masked


def one_by_one(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """One tokeniser call per text."""
    return [tokeniser.hf(text, add_special_tokens=False)["input_ids"] for text in texts]


def one_call(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """One tokeniser call for all texts."""
    return tokeniser.hf(texts, add_special_tokens=False)["input_ids"]


def encode_batch(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """The batch call of the Rust library."""
    encodings = tokeniser.hf.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def encode_batch_fast(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """The batch call of the Rust library without offsets."""
    encodings = tokeniser.hf.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


WAYS: dict[str, Callable[[Tokeniser, list[str]], Lists]] = {
    "one call per text": one_by_one,
    "one call": one_call,
    "encode_batch": encode_batch,
    "encode_batch_fast": encode_batch_fast,
}


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=os.environ.get("MTKD_SHARED_DATA", "../shared/data")
)
@click.option(
    "--file", default="glue/rte/train.parquet", show_default=True, help="Parquet file inside --data."
)
@click.option("--column", default="sentence1", show_default=True)
@click.option("--tokeniser", default=DEFAULT_ENCODER, show_default=True, help="Directory or hub name.")
@click.option("--rows", default=2000, show_default=True)
@click.option("--copies", default=10, show_default=True)
@click.option("--p", default=0.1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(
    data: Path, file: str, column: str, tokeniser: str, rows: int, copies: int, p: float, rounds: int
) -> None:
    """Print texts per second for each method, and the speedup of mtkd's token_ids()."""
    plain = Tokeniser.load(locate(tokeniser))
    texts = pq.read_table(data / file, columns=[column])[column].to_pylist()[:rows]
    masked = masked_copies(texts, copies, p, plain.mask_token)
    array = pa.array(masked)
    seconds: dict[str, list[float]] = {name: [] for name in ("token_ids", *WAYS)}
    for _ in range(rounds):
        new_tokeniser = Tokeniser(plain.hf)
        start = time.perf_counter()
        ragged = new_tokeniser.token_ids(array)
        seconds["token_ids"].append(time.perf_counter() - start)
        expected = np.split(ragged.values, ragged.offsets[1:-1])
        for name, way in WAYS.items():
            start = time.perf_counter()
            ids = way(plain, masked)
            seconds[name].append(time.perf_counter() - start)
            if any(row.tolist() != other for row, other in zip(expected, ids, strict=True)):
                raise click.ClickException(f"the ids of `token_ids` differ from those of `{name}`")
    median = {name: statistics.median(times) for name, times in seconds.items()}
    click.echo(f"{len(masked)} copies of {len(texts)} texts, p = {p}, medians of {rounds} rounds, equal ids")
    for name, time_taken in median.items():
        ratio = time_taken / median["token_ids"]
        click.echo(
            f"{name:18} {len(masked) / time_taken:10,.0f} texts/s   token_ids is {ratio:5.1f}x as fast"
        )


if __name__ == "__main__":
    main()
