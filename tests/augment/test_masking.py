"""Masking, compared with a plain Python version of the documented formula and the binomial distribution."""

from __future__ import annotations

import hashlib
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from augment.masking import Masking
from tasks.common.errors import UserError
from tasks.data.corpus_reader import SCHEMA
from tasks.data.rows import Rows
from tests.helpers.reference_splitmix64 import INCREMENT, reference_splitmix64


def make_rows(*texts: list[str], task: str = "mrpc", labels: float = 1.0) -> Rows:
    count = len(texts[0])
    uids = pa.array([f"{task}/train/{number}" for number in range(count)], pa.string())
    return Rows(
        task, "train", uids, tuple(pa.array(part, pa.string()) for part in texts), np.full(count, labels)
    )


def some_rows(count: int, *, texts: int = 1, seed: int = 0) -> Rows:
    draw = random.Random(seed)
    words = ["a", "tree", "stood", "by", "the", "river", "où", "河", "naïve", "x" * 30]
    lines = [
        [" ".join(draw.choices(words, k=draw.randint(1, 18))) for _ in range(count)] for _ in range(texts)
    ]
    return make_rows(*lines)


def naive(rows: Rows, p: float, seed: int, token: str, copies: int) -> list[tuple[str, int, list[str]]]:
    """Return (parent, copy, texts) by the formula in the docstring of the module, one word at a time."""
    copied = []
    for number, uid in enumerate(rows.uids.to_pylist()):
        key = int.from_bytes(hashlib.blake2b(f"{seed}:{uid}".encode(), digest_size=8).digest(), "little")
        for copy in range(1, copies + 1):
            stream, position, texts = reference_splitmix64(key + copy * INCREMENT), 0, []
            for column in rows.texts:
                words = column[number].as_py().split()
                for index in range(len(words)):
                    position += 1
                    if reference_splitmix64(stream + position * INCREMENT) / 2**64 < p:
                        words[index] = token
                texts.append(" ".join(words))
            copied.append((uid, copy, texts))
    return copied


def copies_of(rows: Rows, method: Masking, copies: int) -> list[tuple[str, int, list[str]]]:
    table = pa.concat_tables([part.table for part in method.make_copies(rows, copies)])
    names = ["text", "text_pair"][: len(rows.texts)]
    texts = zip(*(table[name].to_pylist() for name in names), strict=True)
    parents, numbers = table["parent"].to_pylist(), table["copy"].to_pylist()
    return [(a, b, list(c)) for a, b, c in zip(parents, numbers, texts, strict=True)]


texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans(), st.floats(0.01, 0.99), st.integers(-5, 2**40), st.integers(1, 5))
def test_matches_the_naive_version_on_any_text(lines, pair, p, seed, copies):
    rows = make_rows(lines, lines[::-1]) if pair else make_rows(lines)
    assert copies_of(rows, Masking(p, seed, "<mask>"), copies) == naive(rows, p, seed, "<mask>", copies)


@pytest.mark.parametrize("chunk", [1, 7, 64, 100_000])
def test_chunking_does_not_change_the_copies(monkeypatch, chunk):
    rows = some_rows(60, texts=2)
    expected = naive(rows, 0.3, 4, "[MASK]", 5)
    monkeypatch.setattr("augment.masking._CHUNK", chunk)
    assert copies_of(rows, Masking(0.3, 4), 5) == expected


def test_white_space_becomes_single_spaces_and_empty_texts_stay_empty():
    rows = make_rows(["  a\t b\u3000c\n", "", " \n "])
    for _, _, (text,) in copies_of(rows, Masking(0.5), 20):
        assert text == " ".join(text.split())
    lengths = [len(text.split()) for _, _, (text,) in copies_of(rows, Masking(0.5), 20)]
    assert lengths == [3] * 20 + [0] * 40


def test_copies_differ_and_depend_only_on_seed_and_uid():
    rows = some_rows(50)
    copied = copies_of(rows, Masking(0.2), 10)
    assert copies_of(rows, Masking(0.2), 10) == copied
    assert copies_of(rows, Masking(0.2, seed=1), 10) != copied
    assert copies_of(rows, Masking(0.2), 3) == [copy for copy in copied if copy[1] <= 3]
    backwards = copies_of(rows.take(np.arange(50)[::-1]), Masking(0.2), 10)
    assert sorted(backwards) == sorted(copied)
    same_text = copies_of(make_rows(["the same words in every row of this task"] * 200), Masking(0.2), 1)
    assert len({text for _, _, (text,) in same_text}) > 50


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_words_are_masked_independently_at_the_given_rate(p):
    words, copies, rows = 20, 40, make_rows([" ".join(["w"] * 20)] * 500)
    texts = [text.split() for _, _, (text,) in copies_of(rows, Masking(p), copies)]
    masks = np.array([[word == "[MASK]" for word in text] for text in texts])
    assert stats.binomtest(int(masks.sum()), masks.size, p).pvalue > 1e-3
    by_place = masks.sum(axis=0)
    assert stats.chisquare(by_place, np.full(words, masks.sum() / words)).pvalue > 1e-3
    grid = masks.reshape(500, copies, words).astype(float) - p
    for left, right in ((grid[:, 1:], grid[:, :-1]), (grid[1:], grid[:-1]), (grid[..., 1:], grid[..., :-1])):
        correlation = (left * right).mean() / (p * (1 - p))  # neighbours: copies, rows, words
        assert abs(correlation) < 4 / np.sqrt(left.size)


def test_counts_and_columns_of_the_copies():
    rows = some_rows(300)
    parts = list(Masking(0.1).make_copies(rows, 7))
    expected = naive(rows, 0.1, 0, "[MASK]", 7)
    masked = [text.split().count("[MASK]") for _, _, (text,) in expected]
    assert sum(part.changed for part in parts) == sum(masked)
    assert sum(part.unchanged for part in parts) == masked.count(0)
    assert sum(part.words for part in parts) == sum(len(text.split()) for _, _, (text,) in expected)
    for part in parts:
        assert part.table.schema == SCHEMA
        assert part.table["label"].null_count == part.table["text_pair"].null_count == len(part.table)
        assert set(part.table["task"].to_pylist()) == {"mrpc"}


def test_memory_does_not_grow_with_the_corpus():
    def peak(count: int) -> int:
        rows = some_rows(count)
        method = Masking()
        next(method.make_copies(rows, 10))
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        arrow = max(pa.total_allocated_bytes() - before for _ in method.make_copies(rows, 10))
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return arrow + python

    assert peak(20_000) < 1.25 * peak(2_000) + 1_000_000


@pytest.mark.parametrize(
    ("settings", "value"),
    [({"p": 0.0}, "0.0"), ({"p": 1}, "1"), ({"p": float("nan")}, "nan"), ({"mask_token": "a b"}, "'a b'")],
)
def test_invalid_settings_are_named(settings, value):
    with pytest.raises(UserError, match=value):
        Masking(**settings)
