"""Pruned vocabularies: no unknown words, unchanged tokens of kept text, sizes, invalid tokenisers.

BPE and Unigram vocabularies are trained on the README, and pruned to the tokens of its first lines.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

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


def test_tokenisers_that_cannot_be_pruned_are_rejected(minilm: Tokeniser, tmp_path: Path) -> None:
    words = Tokeniser.word_level([TEXTS])
    with pytest.raises(UserError, match=r"type WordLevel cannot be pruned(.|\n)*WordPiece, BPE or Unigram"):
        prune_vocabulary(words, [TEXTS], 60_000)
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


NAMES = {
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
LINES = (Path(__file__).parents[3] / "README.md").read_text().splitlines()
KEPT_LINES = [line for line in LINES[:80] if line]


@lru_cache
def trained(kind: str) -> Tokeniser:
    """A tokeniser of 2,000 tokens: BPE of bytes or of characters, or Unigram as of XLM-R."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer
    options: dict[str, Any] = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "characters":
        backend = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        options = {"continuing_subword_prefix": "##"}
    elif kind == "unigram":
        backend, trainer, options = (
            Tokenizer(models.Unigram()),
            trainers.UnigramTrainer,
            {"unk_token": "<unk>"},
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = [*NAMES.values()][:4]
    backend.train_from_iterator(
        LINES, trainer(vocab_size=2000, special_tokens=specials, show_progress=False, **options)
    )
    backend.add_special_tokens(["<mask>"])  # its id is the highest, as in XLM-R
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    inputs = ["input_ids", "attention_mask"]
    return Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **NAMES))


@lru_cache
def pruned_to_kept_lines(kind: str) -> Tokeniser:
    return prune_vocabulary(trained(kind), [pa.array(KEPT_LINES)], 60_000)[0]


KINDS = pytest.mark.parametrize("kind", ["bytes", "characters", "unigram"])


@KINDS
def test_kept_text_has_the_same_tokens(kind: str) -> None:
    full, small = trained(kind), pruned_to_kept_lines(kind)
    assert small.vocab_size < 0.9 * full.vocab_size
    for line in KEPT_LINES:
        assert pieces(small, line) == pieces(full, line)
    assert any(pieces(small, line) != pieces(full, line) for line in LINES)
    assert [small.hf.convert_ids_to_tokens(ids) for ids in small.layout(2).specials] == [
        full.hf.convert_ids_to_tokens(ids) for ids in full.layout(2).specials
    ]
    assert small.hf.mask_token_id == small.vocab_size - 1 and small.pad_id == full.pad_id == 1


@KINDS
@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=12), st.text("abcdelstr <unk>##▁é日", max_size=12)))
def test_no_text_becomes_unknown(kind: str, text: str) -> None:
    before, after = (pieces(tokeniser, text) for tokeniser in (trained(kind), pruned_to_kept_lines(kind)))
    assert before.count("<unk>") == after.count("<unk>"), (before, after)
    assert "".join(before).replace("##", "") == "".join(after).replace("##", "")


@KINDS
def test_a_token_is_kept_with_those_that_it_is_merged_from(kind: str) -> None:
    least = prune_vocabulary(trained(kind), [], 60_000)[0].vocab_size
    for size in range(least, least + 100, 7):
        small, kept = prune_vocabulary(trained(kind), [pa.array(KEPT_LINES)], size)
        assert size - 10 < small.vocab_size == len(kept) <= size
        model = json.loads(small.hf.backend_tokenizer.to_str())["model"]
        assert all(part in model["vocab"] for pair in model.get("merges", ()) for part in pair)


def test_all_merges_of_a_token_are_kept() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*NAMES.values(), "a", "b", "c", "d", "ab", "bc", "abc", "cd"]
    merges = [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("c", "d")]
    backend = Tokenizer(
        models.BPE({token: i for i, token in enumerate(vocabulary)}, merges, unk_token="<unk>")
    )
    full = Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES))
    small, kept = prune_vocabulary(full, [pa.array(["abc"])], 60_000)
    assert small.hf.convert_ids_to_tokens(range(len(kept))) == vocabulary[:-1]
    assert pieces(small, "abcab") == pieces(full, "abcab") == ["abc", "ab"]
    assert pieces(full, "cd") == ["cd"] and pieces(small, "cd") == ["c", "d"]


def test_bytes_and_characters_that_are_not_tokens_are_kept() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    scored = [
        ("abab", -2.0),
        *((name, 0.0) for name in NAMES.values()),
        ("aé", -3.0),
        ("bb", -20.0),
        ("ba", -1.2),
    ]
    scored += [(character, -1.0) for character in "ab<0123456789ABCDEFx>"]
    scored += [("ab", -1.5), *((f"<0x{byte:02X}>", -8.0) for byte in range(256))]
    backend = Tokenizer(models.Unigram(scored, unk_id=4, byte_fallback=True))
    full = Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES))
    small, kept = prune_vocabulary(full, [pa.array(["ab"])], 60_000)
    # "abab" stands before <pad>, and "bb" has the lowest score.
    assert small.hf.convert_ids_to_tokens(range(len(kept))) == [name for name, _ in scored if name != "ba"]
    for text in ("ab", "aé", "aü"):
        assert pieces(small, text) == pieces(full, text)
    assert pieces(full, "aü") == ["a", "<0xC3>", "<0xBC>"] and pieces(full, "aé") == ["aé"]
