"""Pruned vocabularies: no unknown words, unchanged tokens of kept text, sizes, invalid tokenisers."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.common.errors import UserError
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.tokeniser import Tokeniser

TEXTS = pa.array(["the cats were playing on mats", "the dog, the cat", "[MASK] sat"])
WORDS = ["the", "cats", "were", "playing", "on", "mats", "dog", "cat", "sat", ",", "[MASK]"]


@lru_cache
def pruned(minilm: Tokeniser) -> Tokeniser:
    return prune_vocabulary(minilm, [TEXTS[:1], TEXTS[1:]], 60_000)[0]


def pieces(tokeniser: Tokeniser, text: str) -> list[str]:
    return tokeniser.hf.tokenize(text)


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(st.text(max_size=12), st.text("abcdéßцあ中ñ ", max_size=12)))
def test_no_word_becomes_unknown(minilm: Tokeniser, text: str) -> None:
    before, after = pieces(minilm, text), pieces(pruned(minilm), text)
    unknown = [before.count("[UNK]"), after.count("[UNK]")]
    assert unknown[0] == unknown[1], (before, after)
    joined = ["".join(token.removeprefix("##") for token in tokens) for tokens in (before, after)]
    assert joined[0] == joined[1]


@settings(max_examples=50, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=8))
def test_text_of_kept_tokens_is_tokenised_as_before(minilm: Tokeniser, words: list[str]) -> None:
    text = " ".join(words)
    assert pieces(pruned(minilm), text) == pieces(minilm, text) == words


def test_kept_tokens_and_special_tokens(minilm: Tokeniser) -> None:
    small, kept = prune_vocabulary(minilm, [TEXTS], 60_000)
    vocabulary = minilm.hf.get_vocab()
    single = {token for token in vocabulary if len(token.removeprefix("##")) == 1}
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert set(small.hf.get_vocab()) == single | special | set(WORDS)
    assert small.vocab_size == len(kept) == len(set(small.hf.get_vocab().values()))
    assert kept.tolist() == sorted(kept.tolist())
    assert small.hf.convert_ids_to_tokens(range(len(kept))) == minilm.hf.convert_ids_to_tokens(kept.tolist())
    assert [small.hf.convert_ids_to_tokens(ids) for ids in small.layout(2).specials] == [
        minilm.hf.convert_ids_to_tokens(ids) for ids in minilm.layout(2).specials
    ]
    assert small.layout(2).text_type_ids == (0, 1) and small.mask_token == minilm.mask_token
    assert "playing" in pieces(small, "playing") and "walking" not in pieces(small, "walking")
    assert prune_vocabulary(minilm, [TEXTS], 60_000)[0].digest == small.digest != minilm.digest


def test_the_most_frequent_tokens_are_kept(minilm: Tokeniser) -> None:
    least = prune_vocabulary(minilm, [], 60_000)[0].vocab_size
    small = prune_vocabulary(minilm, [TEXTS], least + 2)[0]
    order = minilm.hf.get_vocab()
    once = min((word for word in WORDS if len(word) > 1 and word not in ("the", "[MASK]")), key=order.get)
    assert pieces(small, f"the {once}") == ["the", once] and small.vocab_size == least + 2
    with pytest.raises(UserError, match=rf"vocabulary_size={least - 1} is too small(.|\n)*{least:,} or more"):
        prune_vocabulary(minilm, [TEXTS], least - 1)


def test_tokenisers_that_cannot_be_pruned_are_rejected(
    minilm: Tokeniser, roberta: Tokeniser, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"type BPE cannot be pruned(.|\n)*WordPiece"):
        prune_vocabulary(roberta, [TEXTS], 60_000)
    minilm.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["model"]["vocab"]["##§§"] = parts["model"]["vocab"].pop("##§")
    file.write_text(json.dumps(parts))
    with pytest.raises(UserError, match=r"1 of its characters are not tokens of their own: ##§"):
        prune_vocabulary(Tokeniser.load(str(tmp_path)), [TEXTS], 60_000)


def test_ids_of_older_post_processors_and_added_tokens_are_renumbered(
    minilm: Tokeniser, tmp_path: Path
) -> None:
    minilm.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}
    added = parts["added_tokens"][-1] | {"id": len(parts["model"]["vocab"]), "content": "[NUMBER]"}
    parts["added_tokens"].append(added)
    file.write_text(json.dumps(parts))
    small, kept = prune_vocabulary(Tokeniser.load(str(tmp_path)), [TEXTS], 60_000)
    assert kept[-1] == 30522 and small.vocab_size == len(kept)
    ids = small.hf("the cat [NUMBER]", "zoo")["input_ids"]
    expected = ["[CLS]", "the", "cat", "[NUMBER]", "[SEP]", "z", "##o", "##o", "[SEP]"]
    assert small.hf.convert_ids_to_tokens(ids) == expected and ids[3] == len(kept) - 1
