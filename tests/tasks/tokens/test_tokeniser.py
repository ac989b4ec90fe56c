"""Tokenising word by word gives the same ids as whole texts; word-level vocabularies; layouts; errors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.common.errors import UserError
from tasks.tokens import tokeniser as tokenise
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.tokeniser import Tokeniser, tokeniser_errors

SHARED = Path(os.environ.get("MTKD_SHARED_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
AWKWARD = [
    "[MASK]", "x[MASK]y", "[SEP][CLS]", "[mask]", "中文字", "日本 語", "e\u0301", "\u0301", "İ", "ΑΣ", "ß",
    "ﬁ", "한글", "\u1112\u1161\u11ab", "a\x00b", "\x01", "\u200b", "\u3000", "\xa0", "\u2028", "\t",
    "\r\n", "\x85", "\ufffd", "\u202e", "👩\u200d👧", "don't", "##ing", "$5.00", "x" * 101, "y" * 100,
    "", " ", "  ", "playing", "Naïve",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(AWKWARD), st.text(max_size=8)), max_size=8).flatmap(
    lambda parts: st.sampled_from([" ".join(parts), "".join(parts)])
)


def plain(tokeniser: Tokeniser, texts: list[str]) -> list[list[int]]:
    """Return the ids from transformers."""
    return [tokeniser.hf(text, add_special_tokens=False)["input_ids"] for text in texts]


def rows(ragged: RaggedArray) -> list[list[int]]:
    return [ragged.row(i).tolist() for i in range(len(ragged))]


@pytest.fixture(scope="module")
def word_level() -> Tokeniser:
    return Tokeniser.word_level([pa.array([*AWKWARD, "the playing of a naive play , don ' t"])], 60)


@pytest.fixture(scope="module")
def pruned(minilm: Tokeniser) -> Tokeniser:
    return prune_vocabulary(minilm, [pa.array(["the cat sat", "playing naive"])], 60_000)[0]


@pytest.fixture(scope="module")
def cased() -> Tokeniser:
    """BERT cased: accents and CJK characters are left alone, so a word is often unknown as a whole."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "[PAD]",
        "[UNK]",
        "[MASK]",
        "a",
        "##a",
        "e",
        "##e",
        "\u0301",
        "##\u0301",
        "中",
        "##文",
        "Na",
        "##ï",
        "##ve",
    ]
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, handle_chinese_chars=False
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, **specials))


def test_ragged_arrays_can_be_indexed_and_concatenated() -> None:
    lists = [[1, 2], [], [3], [4, 5, 6]]
    ragged = RaggedArray.from_lists(lists)
    assert rows(ragged) == lists and ragged.lengths.tolist() == [2, 0, 1, 3]
    assert rows(ragged.take(np.array([3, 1, 1, 0, 3]))) == [[4, 5, 6], [], [], [1, 2], [4, 5, 6]]
    assert rows(ragged.take(np.array([], np.int64))) == []
    assert rows(RaggedArray.concat([ragged, RaggedArray.from_lists([]), ragged])) == lists + lists
    assert (ragged.values.dtype, ragged.offsets.dtype) == (np.int32, np.int64)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, max_size=4))
def test_separately_tokenised_words_give_the_ids_of_the_text(
    minilm: Tokeniser,
    word_level: Tokeniser,
    cased: Tokeniser,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
) -> None:
    for tokeniser in (minilm, word_level, cased):
        assert tokeniser.word_local
        for few in (0, len(texts)):  # texts are split by Arrow, then by Python
            monkeypatch.setattr(tokenise, "FEW_TEXTS", few)
            assert rows(tokeniser.token_ids(pa.array(texts, pa.string()))) == plain(tokeniser, texts)


def test_unusual_texts_are_tokenised_correctly_alone_and_in_a_slice(minilm: Tokeniser) -> None:
    texts = pa.array(AWKWARD)
    assert rows(minilm.token_ids(texts)) == plain(minilm, AWKWARD)
    assert rows(minilm.token_ids(texts[3:9])) == plain(minilm, AWKWARD[3:9])


@pytest.mark.parametrize("task, column", [("rte", "sentence1"), ("stsb", "sentence2"), ("cola", "sentence")])
def test_real_texts_and_their_masked_copies_are_tokenised_correctly(
    minilm: Tokeniser, task: str, column: str
) -> None:
    path = SHARED / "glue" / task / "train.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not there; set MTKD_SHARED_DATA")
    texts = pq.read_table(path, columns=[column])[column].to_pylist()[:800]
    random = np.random.default_rng(0)
    masked = [" ".join("[MASK]" if random.random() < 0.3 else w for w in text.split(" ")) for text in texts]
    assert rows(minilm.token_ids(pa.array(texts + masked))) == plain(minilm, texts + masked)


def test_chunks_and_a_full_word_cache_change_nothing(
    minilm: Tokeniser, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word{i} and {i % 7} more naïve" for i in range(100)]
    monkeypatch.setattr(tokenise, "TEXTS_PER_CALL", 9)
    monkeypatch.setattr(tokenise, "MAX_WORDS", 40)
    assert rows(minilm.token_ids(pa.array(texts))) == plain(minilm, texts)
    assert len(minilm._word_index) <= 40


def test_a_tokeniser_with_an_added_token_containing_a_space_is_not_applied_word_by_word(
    minilm: Tokeniser,
) -> None:
    from transformers import AddedToken, PreTrainedTokenizerFast

    for token in (AddedToken("New York", normalized=False), AddedToken("中", normalized=True)):
        hf = PreTrainedTokenizerFast.from_pretrained(minilm.hf.name_or_path)
        hf.add_tokens([token])
        tokeniser = Tokeniser(hf)
        texts = ["In New York , 中 new york", "a 中 b", ""]
        assert not tokeniser.word_local
        assert tokeniser.digest != minilm.digest
        assert rows(tokeniser.token_ids(pa.array(texts))) == plain(tokeniser, texts)


def test_byte_level_tokens_match_transformers(roberta: Tokeniser) -> None:
    texts = ["the cat <mask> on", " the  cat", "", "naïve 中文"]
    assert not roberta.word_local
    assert rows(roberta.token_ids(pa.array(texts))) == plain(roberta, texts)


def test_a_sequence_beyond_the_maximum_length_prints_nothing(
    minilm: Tokeniser, capfd: pytest.CaptureFixture[str]
) -> None:
    assert minilm.token_ids(pa.array(["a " * 600])).lengths.tolist() == [600]
    assert capfd.readouterr() == ("", "")


def test_the_layout_has_the_special_tokens_of_the_model(minilm: Tokeniser, roberta: Tokeniser) -> None:
    pair = minilm.layout(2)
    assert pair.specials == ((101,), (102,), (102,))
    assert pair.special_type_ids == ((0,), (0,), (1,)) and pair.text_type_ids == (0, 1)
    assert roberta.layout(1).specials == ((0,), (2,))
    assert roberta.layout(2).specials == ((0,), (2, 2), (2,)) and roberta.layout(2).n_specials == 4
    assert roberta.layout(2).text_type_ids == (0, 0)


def test_word_level_keeps_the_most_frequent_words() -> None:
    parts = [pa.array(["b b A, a", "Zoë zoe"]), pa.array(["c [MASK] a", "d c"])]
    tokeniser = Tokeniser.word_level(parts, 5 + 4)
    # a 3; b, c and zoe 2 each, in order of the alphabet; "," and d, once each, are left out
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "zoe"]
    assert tokeniser.hf.get_vocab() == {word: i for i, word in enumerate(words)}
    assert (tokeniser.vocab_size, tokeniser.pad_id, tokeniser.unknown_id, tokeniser.mask_token) == (
        9, 0, 1, "[MASK]",
    )  # fmt: skip
    assert rows(tokeniser.token_ids(pa.array(["A zoë [MASK] d,"]))) == [[5, 8, 4, 1, 1]]
    assert Tokeniser.word_level(parts[::-1], 9).digest == tokeniser.digest


def test_unused_ids_count_in_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "cat", "dog"]  # 5 is left out
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tokeniser = Tokeniser.load(str(tmp_path))
    assert tokeniser.vocab_size == 8 and rows(tokeniser.token_ids(pa.array(["dog"]))) == [[7]]


@pytest.mark.parametrize("which", ["minilm", "roberta", "word_level", "pruned"])
def test_saving_and_loading_preserves_the_tokeniser(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tokeniser: Tokeniser = request.getfixturevalue(which)
    tokeniser.hf(
        ["a", "b"], padding="max_length", truncation=True, max_length=5
    )  # changes the state of the tokeniser
    tokeniser.save(tmp_path)
    again = Tokeniser.load(str(tmp_path))
    assert again.digest == tokeniser.digest
    assert again.layout(2) == tokeniser.layout(2)
    assert again.mask_token == tokeniser.mask_token
    texts = pa.array([*AWKWARD, "the cat sat"])
    assert rows(again.token_ids(texts)) == rows(tokeniser.token_ids(texts))


def test_the_digest_depends_on_ids_but_not_on_truncation_settings(
    minilm: Tokeniser, word_level: Tokeniser
) -> None:
    before = minilm.digest
    minilm.hf(["a b c"], truncation=True, max_length=3, padding="max_length")
    assert Tokeniser(minilm.hf).digest == before != word_level.digest


def test_a_tokeniser_that_cannot_be_loaded_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants
    from transformers import CanineTokenizer

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"'no-such-model'.*no such directory.*cannot be reached"):
        Tokeniser.load("no-such-model")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text('{"version": "1.0", ')
    for name in ("damaged", "."):
        with pytest.raises(UserError, match="cannot load the tokeniser of"):
            Tokeniser.load(str(tmp_path / name))
    CanineTokenizer().save_pretrained(str(tmp_path / "slow"))
    with pytest.raises(UserError, match="no fast version"):
        Tokeniser.load(str(tmp_path / "slow"))


def test_a_tokeniser_without_a_mask_token_is_rejected(roberta: Tokeniser) -> None:
    from transformers import PreTrainedTokenizerFast

    hf = PreTrainedTokenizerFast(
        tokenizer_object=roberta.hf.backend_tokenizer, pad_token="<pad>", unk_token="<unk>"
    )
    with pytest.raises(UserError, match="has no mask token"):
        Tokeniser(hf)
    hf.unk_token = ""  # transformers then searches for its id without end
    with pytest.raises(UserError, match="has no unk token"):
        Tokeniser(hf)


@pytest.mark.parametrize("vocabulary", ["[PAD]\n[MASK]\na\nb\n", "a\nb\nc\n", "\x00" * 9])
def test_a_vocabulary_without_a_token_for_unknown_words_is_rejected(vocabulary: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(vocabulary)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"lacks '\[UNK\]' in its vocabulary|has no vocabulary"):
        Tokeniser.load(str(tmp_path))


def test_a_checkpoint_without_a_tokeniser_is_an_error_that_says_how_to_save_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"has no vocabulary(.|\n)*tokenizer\.save_pretrained"):
        Tokeniser.load(str(tmp_path))


def test_errors_of_tokenizers_name_the_tokeniser() -> None:
    from tokenizers import Tokenizer

    with pytest.raises(UserError, match="the tokeniser 'here' cannot be used: "), tokeniser_errors("here"):
        Tokenizer.from_str("{}")
    with pytest.raises(KeyError), tokeniser_errors("here"):
        raise KeyError("another error")
