"""Tokenise masked copies of real sentences: word by word with a memory, against the plain ways.

Every round times each way once, in turn, on the same copies and with an empty memory of words; the ids are
checked to be equal. Run it as `python scripts/bench_tokenise.py --data ../shared/data`.
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

from mtkd.models.encoders.pretrained_config import DEFAULT_TEACHER, locate
from tasks.tokeniser import Tokeniser

Lists = list[list[int]]


def masked_copies(texts: list[str], copies: int, p: float, mask: str) -> list[str]:
    """`copies` of each text, each space-separated word replaced by the mask token with probability p."""
    random = np.random.default_rng(0)
    made = []
    for words in (text.split(" ") for text in texts):
        for hit in random.random((copies, len(words))) < p:
            made.append(" ".join(np.where(hit, mask, words).tolist()))
    return made


def one_by_one(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """Each text by its own call of the tokeniser."""
    return [tokeniser.hf(text, add_special_tokens=False)["input_ids"] for text in texts]


def one_call(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """All texts in one call of the tokeniser."""
    return tokeniser.hf(texts, add_special_tokens=False)["input_ids"]


def encode_batch(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """The Rust library's own batch call."""
    encodings = tokeniser.hf.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def encode_batch_fast(tokeniser: Tokeniser, texts: list[str]) -> Lists:
    """The same without offsets."""
    encodings = tokeniser.hf.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


WAYS: dict[str, Callable[[Tokeniser, list[str]], Lists]] = {
    "one call a text": one_by_one,
    "one call": one_call,
    "encode_batch": encode_batch,
    "encode_batch_fast": encode_batch_fast,
}


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=os.environ.get("MTKD_SHARED_DATA", "../shared/data")
)
@click.option(
    "--file", default="glue/rte/train.parquet", show_default=True, help="Parquet file below --data."
)
@click.option("--column", default="sentence1", show_default=True)
@click.option("--tokeniser", default=DEFAULT_TEACHER, show_default=True, help="Directory or hub name.")
@click.option("--rows", default=2000, show_default=True)
@click.option("--copies", default=10, show_default=True)
@click.option("--p", default=0.1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(
    data: Path, file: str, column: str, tokeniser: str, rows: int, copies: int, p: float, rounds: int
) -> None:
    """Print texts a second of each way, and how many times faster pieces() is."""
    plain = Tokeniser.load(locate(tokeniser))
    texts = pq.read_table(data / file, columns=[column])[column].to_pylist()[:rows]
    made = masked_copies(texts, copies, p, plain.mask_token)
    array = pa.array(made)
    seconds: dict[str, list[float]] = {name: [] for name in ("pieces", *WAYS)}
    for _ in range(rounds):
        fresh = Tokeniser(plain.hf)
        start = time.perf_counter()
        pieces = fresh.token_ids(array)
        seconds["pieces"].append(time.perf_counter() - start)
        ours = np.split(pieces.values, pieces.offsets[1:-1])
        for name, way in WAYS.items():
            start = time.perf_counter()
            ids = way(plain, made)
            seconds[name].append(time.perf_counter() - start)
            if any(mine.tolist() != theirs for mine, theirs in zip(ours, ids, strict=True)):
                raise click.ClickException(f"the ids of `pieces` differ from those of `{name}`")
    median = {name: statistics.median(times) for name, times in seconds.items()}
    click.echo(f"{len(made)} copies of {len(texts)} texts, p = {p}, medians of {rounds} rounds, equal ids")
    for name, time_taken in median.items():
        ratio = time_taken / median["pieces"]
        click.echo(f"{name:18} {len(made) / time_taken:10,.0f} texts/s   pieces is {ratio:5.1f}x as fast")


if __name__ == "__main__":
    main()
