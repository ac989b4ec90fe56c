"""Batches match transformers and a naive loop over rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.common.errors import UserError
from tasks.data.rows import Rows
from tasks.tokens.batching import Batch, Collator, Tokens
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import InputFormat, Reader
from tasks.tokens.tokeniser import Tokeniser

WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "unbelievably", "Reykjavík", "'s", "naïve", "playing"]


def make_rows(n_texts: int, n: int = 40, seed: int = 0) -> Rows:
    """Random texts of 0 to 24 words; the last rows have equal texts, and every fifth row is unlabelled."""
    random = np.random.default_rng(seed)
    first, second = (
        [" ".join(random.choice(WORDS, size)) for size in random.integers(0, 25, n)] for _ in range(2)
    )
    texts = (pa.array(first), pa.array(second[:-6] + first[-6:]))[:n_texts]
    labels = np.where(np.arange(n) % 5 == 0, np.nan, np.arange(n) % 3).astype(float)
    uids = pa.array([f"t/train/{i}" for i in range(n)])
    return Rows("t", "train", uids, texts, labels, np.arange(n) // 4)


@pytest.mark.parametrize("which", ["minilm", "roberta"])
@pytest.mark.parametrize("n_texts", [1, 2])
def test_pair_inputs_match_transformers(which: str, n_texts: int, request: pytest.FixtureRequest) -> None:
    tokeniser: Tokeniser = request.getfixturevalue(which)
    rows = make_rows(n_texts)
    encoded = Encoded.encode(rows, tokeniser)
    columns = [text.to_pylist() for text in rows.texts]
    for max_length in [6, 7, 10, 13, 16, 25, 32, 47, 300]:
        reader = Reader(tokeniser, "joined", max_length)
        tokens = Collator(reader)(encoded, np.arange(len(rows))).inputs.joined
        assert tokens is not None
        expected = tokeniser.hf(
            *columns,
            truncation="longest_first",
            max_length=max_length,
            padding=True,
            return_tensors="pt",
            return_token_type_ids=True,
        )
        assert torch.equal(tokens.ids, expected["input_ids"])
        assert torch.equal(tokens.mask, expected["attention_mask"].bool())
        if which == "minilm":
            assert torch.equal(tokens.token_type_ids, expected["token_type_ids"])
        assert reader.lengths(encoded.texts).tolist() == expected["attention_mask"].sum(1).tolist()


@pytest.mark.parametrize("input_format", ["joined", "side-by-side"])
@pytest.mark.parametrize("which", ["minilm", "roberta"])
@pytest.mark.parametrize("n_texts", [1, 2])
def test_ends_of_texts_are_separator_tokens(
    which: str, n_texts: int, input_format: InputFormat, request: pytest.FixtureRequest
) -> None:
    """No [CLS] is marked as an end, and `Layout.n_ends` counts the marked tokens."""
    tokeniser: Tokeniser = request.getfixturevalue(which)
    encoded, reader = Encoded.encode(make_rows(n_texts), tokeniser), Reader(tokeniser, input_format, 25)
    tokens = Collator(reader)(encoded, np.arange(len(encoded))).inputs.joined
    assert tokens is not None and tokens.ends is not None
    assert torch.equal(tokens.ends, tokens.mask & (tokens.ids == tokeniser.hf.sep_token_id))
    assert set(tokens.ends.sum(1).tolist()) == {sum(reader.layout(n_texts).n_ends)}


def test_separate_texts_have_no_special_tokens(minilm: Tokeniser) -> None:
    rows = make_rows(2)
    encoded = Encoded.encode(rows, minilm)
    reader = Reader(minilm, "separate", 9)
    indices = np.array([7, 3, 3, 30, 12, 0])
    texts = Collator(reader)(encoded, indices).inputs.texts
    assert texts is not None and len(texts) == 2
    totals = np.zeros(len(indices), np.int64)
    for tokens, column in zip(texts, rows.texts, strict=True):
        expected = []
        for i in indices:
            ids = minilm.hf(column[int(i)].as_py(), add_special_tokens=False)["input_ids"][:9]
            expected.append(ids or [minilm.unknown_id])
        assert_holds(tokens, expected, minilm.pad_id)
        totals += [len(ids) for ids in expected]
    assert reader.lengths(encoded.texts)[indices].tolist() == totals.tolist()


def test_an_empty_text_is_one_unknown_token(minilm: Tokeniser) -> None:
    uids = pa.array(["a", "b"])
    rows = Rows("t", "train", uids, (pa.array(["", "cat"]), pa.array(["", ""])), np.zeros(2))
    encoded = Encoded.encode(rows, minilm)
    texts = Collator(Reader(minilm, "separate", 8))(encoded, np.arange(2)).inputs.texts
    assert texts is not None
    assert texts[0].ids.tolist() == [[100], [minilm.hf.convert_tokens_to_ids("cat")]]
    assert texts[1].ids.tolist() == [[100], [100]] and bool(texts[1].mask.all())
    joint = Collator(Reader(minilm, "joined", 8))(encoded, np.array([0])).inputs.joined
    assert joint is not None and joint.ids.tolist() == [[101, 102, 102]]


@pytest.mark.parametrize(
    ("input_format", "truncated"),
    [("joined", [False, False, True, True]), ("separate", [False, False, False, True])],
)
def test_truncated_rows_are_counted(
    minilm: Tokeniser, input_format: InputFormat, truncated: list[bool]
) -> None:
    words = [(0, 0), (2, 3), (4, 2), (0, 9)]
    texts = tuple(minilm.token_ids(pa.array(["cat " * row[i] for row in words])) for i in (0, 1))
    assert Reader(minilm, input_format, 8).is_truncated(texts).tolist() == truncated


@pytest.mark.parametrize("input_format", ["joined", "separate"])
def test_a_fixed_length_only_adds_padding(minilm: Tokeniser, input_format: InputFormat) -> None:
    encoded = Encoded.encode(make_rows(2), minilm)
    reader = Reader(minilm, input_format, 30)
    indices = np.array([1, 2, 8])
    tight, wide = (all_tokens(Collator(reader, pad_to=pad)(encoded, indices)) for pad in (None, 64))
    for near, far in zip(tight, wide, strict=True):
        width = near.ids.shape[1]
        assert far.ids.shape == (3, 64) and not bool(far.mask[:, width:].any())
        assert torch.equal(far.ids[:, :width], near.ids) and torch.equal(far.mask[:, :width], near.mask)
        assert torch.equal(far.token_type_ids[:, :width], near.token_type_ids)
        assert bool((far.ids[:, width:] == minilm.pad_id).all())


def test_a_batch_has_labels_groups_and_row_indices(minilm: Tokeniser) -> None:
    rows = make_rows(1)
    encoded = Encoded.encode(rows, minilm)
    indices = np.array([5, 6, 2])
    batch = Collator(Reader(minilm, "joined", 16))(encoded, indices)
    assert (batch.task, len(batch), batch.indices.tolist(), batch.teacher) == ("t", 3, [5, 6, 2], None)
    assert batch.labels.dtype == torch.float32 and torch.isnan(batch.labels).tolist() == [True, False, False]
    assert batch.labels[1:].tolist() == [0.0, 2.0]
    assert batch.groups is not None and batch.groups.tolist() == [1, 1, 0]
    part = Collator(Reader(minilm, "joined", 16))(encoded.take(indices), np.arange(3))
    assert encoded.take(indices).uids.to_pylist() == ["t/train/5", "t/train/6", "t/train/2"]
    assert part.inputs.joined and batch.inputs.joined
    assert torch.equal(part.inputs.joined.ids, batch.inputs.joined.ids)


def test_a_teacher_with_the_same_input_encoding_shares_the_inputs(minilm: Tokeniser) -> None:
    encoded = Encoded.encode(make_rows(2), minilm)
    reader = Reader(minilm, "joined", 32)
    batch = Collator(reader, Reader(minilm, "joined", 32))(encoded, np.arange(4))
    assert batch.teacher is batch.inputs
    moved = batch.to("cpu")
    assert moved.teacher is moved.inputs and len(moved) == 4
    other = Collator(Reader(minilm, "separate", 32), reader)(encoded, np.arange(4)).to("cpu")
    assert other.inputs.texts and other.teacher and other.teacher.joined and batch.inputs.joined
    assert torch.equal(other.teacher.joined.ids, batch.inputs.joined.ids)


def test_a_batch_is_pinned_before_it_is_copied_to_a_gpu(
    minilm: Tokeniser, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[torch.Tensor] = []
    copied: list[tuple[bool, bool]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    def to(tensor: torch.Tensor, device: str, non_blocking: bool = False) -> torch.Tensor:
        copied.append((tensor.is_pinned(), non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: any(tensor is one for one in pinned))
    monkeypatch.setattr(torch.Tensor, "to", to)
    reader = Reader(minilm, "joined", 32)
    batch = Collator(reader, reader)(Encoded.encode(make_rows(2), minilm), np.arange(4))
    assert batch.inputs.joined
    parts = [batch.labels, batch.groups, *vars(batch.inputs.joined).values()]
    n_tensors = sum(part is not None for part in parts)
    ready = batch.pin_memory()
    assert len(pinned) == n_tensors >= 6 and ready.teacher is ready.inputs
    ready.to("cuda:0")
    assert len(pinned) == n_tensors, "nothing is pinned twice"
    assert batch.to("cuda:0").labels.isnan().equal(batch.labels.isnan())
    assert copied == [(True, True)] * 2 * n_tensors
    assert batch.to("cpu") is batch and len(copied) == 2 * n_tensors


def test_a_teacher_with_another_tokeniser_gets_its_own_inputs(minilm: Tokeniser, roberta: Tokeniser) -> None:
    rows = make_rows(2)
    student, teacher = Reader(minilm, "separate", 32), Reader(roberta, "joined", 64)
    student_rows, teacher_rows = (Encoded.encode(rows, tokeniser) for tokeniser in (minilm, roberta))
    batch = Collator(student, teacher)(replace(student_rows, teacher=teacher_rows.texts), np.arange(5))
    alone = Collator(teacher)(teacher_rows, np.arange(5))
    assert batch.teacher and batch.teacher.joined and alone.inputs.joined
    assert torch.equal(batch.teacher.joined.ids, alone.inputs.joined.ids)
    with pytest.raises(ValueError, match="without the teacher's tokeniser"):
        Collator(student, teacher)(student_rows, np.arange(5))


def test_impossible_lengths_are_rejected(minilm: Tokeniser) -> None:
    with pytest.raises(UserError, match="max_length 4 is too short"):
        Reader(minilm, "joined", 4)
    with pytest.raises(UserError, match="max_length 0 is too short"):
        Reader(minilm, "separate", 0)
    with pytest.raises(UserError, match="cannot pad to 16"):
        Collator(Reader(minilm, "separate", 8), Reader(minilm, "joined", 32), pad_to=16)


def assert_holds(tokens: Tokens, expected: list[list[int]], pad_id: int) -> None:
    width = max(map(len, expected))
    assert tokens.ids.tolist() == [ids + [pad_id] * (width - len(ids)) for ids in expected]
    assert tokens.mask.tolist() == [[column < len(ids) for column in range(width)] for ids in expected]
    assert not bool(tokens.token_type_ids.any())


def all_tokens(batch: Batch) -> list[Tokens]:
    return [*([batch.inputs.joined] if batch.inputs.joined else []), *(batch.inputs.texts or ())]
