"""Tokenisers: texts to ragged arrays of token ids, and the special tokens around texts.

BERT-style tokenisers never look across a space, so each distinct word of a corpus is tokenised only once, and
the ids of a text are gathered from those of its words. Masked copies, which repeat the same words many times,
then cost little more than a look-up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, reason_of
from tasks.common.files import disk_errors
from tasks.common.hub_loading import load_named
from tasks.common.records import read_record
from tasks.common.sha256 import digest_bytes
from tasks.tokens.ragged import RaggedArray, offsets_of
from tasks.tokens.token_layout import Layout, probe_layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

TEXTS_PER_CALL = 50_000  # texts tokenised at once
MAPPED_TEXTS = 200_000  # the ids of more texts are kept in temporary files
FEW_TEXTS = 32  # up to this number of texts, Python splits them faster than Arrow
MAX_WORDS = 500_000  # distinct words cached between calls
PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


class Tokeniser:
    """A wrapper around a fast Hugging Face tokeniser.

    Attributes:
        hf: the wrapped tokeniser.
        digest: SHA-256 of everything that determines token ids and token type ids.
        vocab_size: the largest id plus 1. If a vocab.txt repeats a word, there are fewer tokens than ids.
        pad_id, unknown_id: ids of the padding and unknown tokens.
        mask_token: the text of the mask token.
        word_local: True if no token depends on text beyond the nearest spaces (U+0020).

    Raises:
        UserError: the tokeniser has no padding, unknown or mask token.
    """

    def __init__(self, hf: PreTrainedTokenizerFast):
        for kind in ("unk", "pad", "mask"):  # transformers looks up the id of "unk" if another token has none
            if not getattr(hf, f"{kind}_token") or getattr(hf, f"{kind}_token_id") is None:
                raise UserError(
                    f"the tokeniser {hf.name_or_path!r} has no {kind} token",
                    expected="tokenisers of masked-language encoders (BERT, RoBERTa, XLM-R, ELECTRA, ...)",
                )
        self.hf = hf
        backend = self._backend()
        token_type_ids = "token_type_ids" in hf.model_input_names
        self.digest, self.word_local, missing = _backend_properties(backend.to_str(), token_type_ids)
        if missing is not None:
            raise UserError(
                f"the tokeniser {hf.name_or_path!r} lacks {missing!r} in its vocabulary",
                expected="a vocabulary with a token for unknown words",
                hint="add it, or restore the files of the tokeniser",
            )
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        self.pad_id: int = hf.pad_token_id
        self.unknown_id: int = hf.unk_token_id
        self.mask_token: str = str(hf.mask_token)
        with tokeniser_errors(hf.name_or_path):
            self._layouts = {n: probe_layout(backend, n, token_type_ids) for n in (1, 2)}
        self._word_index: dict[str, int] = {}
        self._word_ids = RaggedArray.from_lists([])

    @classmethod
    def load(cls, name_or_dir: str) -> Tokeniser:
        """Load a tokeniser from a directory, the hub's cache, or the hub.

        Raises:
            UserError: the name is unknown, the tokeniser is damaged or slow, or the hub cannot be reached.
        """
        from transformers import AutoTokenizer

        if (file := Path(name_or_dir) / "tokenizer_config.json").is_file():
            read_record(file, dict[str, Any])
        load = partial(AutoTokenizer.from_pretrained, trust_remote_code=False)
        hf: Any = load_named(load, name_or_dir, "tokeniser")
        if len(hf) <= len(hf.all_special_tokens):  # transformers makes an empty one if files are missing
            raise UserError(
                f"the tokeniser of {name_or_dir!r} has no vocabulary",
                expected="a tokenizer.json, or the vocabulary of a transformers tokeniser",
                hint="save the tokeniser beside the model: tokenizer.save_pretrained(DIR)",
            )
        if not hf.is_fast:
            raise UserError(
                f"the tokeniser of {name_or_dir!r} has no fast version ({type(hf).__name__})",
                hint="convert it to a tokenizer.json once, and pass that directory",
            )
        return cls(hf)

    @classmethod
    def word_level(cls, texts: Iterable[pa.StringArray], size: int = 60_000) -> Tokeniser:
        """A BERT-style tokeniser whose tokens are the most frequent lower-cased words of `texts`.

        Args:
            texts: arrays of texts, iterated once.
            size: vocabulary size, five special tokens included; equally frequent words are sorted
                alphabetically.
        """
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        specials = [PAD, UNKNOWN, CLS, SEP, MASK]
        backend = Tokenizer(models.WordLevel({}, unk_token=UNKNOWN))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        counts = _count_words(backend, texts, specials)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        vocabulary = [*specials, *ranked[: max(0, size - len(specials))]]
        backend.model = models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, vocabulary.index(CLS)), (SEP, vocabulary.index(SEP))],
        )
        names = zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), specials, strict=True)
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        hf = PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **dict(names))
        return cls(hf)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a directory that `load` reads.

        Raises:
            UserError: the disk is full or the directory cannot be written.
        """
        self._backend()
        with disk_errors(directory):
            self.hf.save_pretrained(str(directory))

    def layout(self, n_texts: int) -> Layout:
        """The special tokens around `n_texts` (1 or 2) texts."""
        return self._layouts[n_texts]

    def token_ids(self, texts: pa.StringArray) -> RaggedArray:
        """The token ids of each text, without surrounding special tokens and without truncation.

        A special token that is spelled out in a text, such as the mask token, becomes that token.
        """
        chunks = (texts[i : i + TEXTS_PER_CALL] for i in range(0, len(texts), TEXTS_PER_CALL))
        parts = map(self._by_word if self.word_local else self._encode, chunks)
        return RaggedArray.mapped(parts) if len(texts) > MAPPED_TEXTS else RaggedArray.concat(list(parts))

    def token_ids_with_offsets(self, texts: pa.StringArray) -> tuple[RaggedArray, RaggedArray, RaggedArray]:
        """The token ids of each text as from `token_ids`, and the character offsets of each token.

        Returns:
            Token ids; offset of each token's first character; offset after its last. White space at the edges
            of a token is not counted.
        """
        parts: list[tuple[RaggedArray, RaggedArray, RaggedArray]] = []
        for i in range(0, len(texts), TEXTS_PER_CALL):
            batch = texts[i : i + TEXTS_PER_CALL].to_pylist()
            with tokeniser_errors(self.hf.name_or_path):
                encodings = self._backend().encode_batch(batch, add_special_tokens=False)
            offsets = [
                _trimmed(text, encoding.offsets) for text, encoding in zip(batch, encodings, strict=True)
            ]
            begins, ends = ([[pair[k] for pair in row] for row in offsets] for k in (0, 1))
            ids = RaggedArray.from_lists([encoding.ids for encoding in encodings])
            parts.append((ids, RaggedArray.from_lists(begins), RaggedArray.from_lists(ends)))
        columns = list(zip(*parts, strict=True)) or [(), (), ()]
        first, second, third = (RaggedArray.concat(list(column)) for column in columns)
        return first, second, third

    def _backend(self) -> Tokenizer:
        backend = self.hf.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return backend

    def _encode(self, texts: pa.StringArray | list[str]) -> RaggedArray:
        listed = texts if isinstance(texts, list) else texts.to_pylist()
        with tokeniser_errors(self.hf.name_or_path):
            encodings = self._backend().encode_batch_fast(listed, add_special_tokens=False)
        return RaggedArray.from_lists([encoding.ids for encoding in encodings])

    def _by_word(self, texts: pa.StringArray) -> RaggedArray:
        """Tokenise each distinct space-separated word once, and assemble the texts from the words."""
        if len(texts) <= FEW_TEXTS and not texts.null_count:
            split = [text.split(" ") for text in texts.to_pylist()]
            first = offsets_of(np.fromiter(map(len, split), np.int64, len(split)))
            indices = self._find(list(itertools.chain.from_iterable(split)))
        else:
            parts = pc.split_pattern(texts, " ")
            first = offsets_of(pc.list_value_length(parts).to_numpy(zero_copy_only=False))
            coded = parts.flatten().dictionary_encode()
            indices = self._find(coded.dictionary.to_pylist())[coded.indices.to_numpy()]
        ids = self._word_ids.take(indices)
        return RaggedArray(ids.values, ids.offsets[first])

    def _find(self, words: list[str]) -> np.ndarray:
        """The index of each word in the cache; new words are tokenised and added first.

        Args:
            words: they may be repeated.
        """
        if len(self._word_index) + len(words) > MAX_WORDS:
            self._word_index, self._word_ids = {}, RaggedArray.from_lists([])
        index = self._word_index
        new = [word for word in dict.fromkeys(words) if word not in index]
        if new:
            self._word_ids = RaggedArray.concat([self._word_ids, self._encode(new)])
            index.update(zip(new, range(len(index), len(self._word_ids)), strict=True))
        return np.fromiter(map(index.__getitem__, words), np.int64, len(words))


def _trimmed(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The offsets without white space at the edges; some tokenisers include the space before a word."""
    if not any(begin < end and (text[begin].isspace() or text[end - 1].isspace()) for begin, end in offsets):
        return offsets
    trimmed = []
    for begin, end in offsets:
        inside = text[begin:end]
        begin += len(inside) - len(inside.lstrip())
        trimmed.append((begin, begin + len(inside.strip())) if inside.strip() else (end, end))
    return trimmed


@lru_cache(maxsize=4)  # the models of a run often share one, and it takes a tenth of a second
def _backend_properties(backend: str, token_type_ids: bool) -> tuple[str, bool, str | None]:
    """`Tokeniser.digest` and `Tokeniser.word_local` of a serialised backend, and a missing unknown token.

    The last value is the token for unknown words if the vocabulary lacks it although the model needs it, else
    None.
    """
    parts = json.loads(backend)
    digest = digest_bytes(json.dumps(parts, sort_keys=True), str(token_type_ids))
    model = parts["model"]
    needs_token = model["type"] in ("WordPiece", "WordLevel") and model["unk_token"] not in model["vocab"]
    return digest, _is_word_local(parts), model["unk_token"] if needs_token else None


@contextlib.contextmanager
def tokeniser_errors(where: str) -> Iterator[None]:
    """Turn the errors of tokenizers, which have no class of their own, into a UserError."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise UserError(
            f"the tokeniser {where!r} cannot be used: {reason_of(error)}",
            hint="restore its files; an export is made again with `mtkd.export`",
        ) from error


def _is_word_local(parts: dict[str, Any]) -> bool:
    """True if the ids of a text are those of its space-separated words in order.

    BERT's normaliser maps single characters, its pre-tokeniser splits at every space, and WordPiece and
    WordLevel look at one word at a time. An added token could reach across a space only if it contains one,
    or if it is matched after normalisation, which may insert spaces.
    """
    normaliser, splitter = parts["normalizer"], parts["pre_tokenizer"]
    return (
        (normaliser is None or normaliser["type"] == "BertNormalizer")
        and (splitter is not None and splitter["type"] == "BertPreTokenizer")
        and parts["model"]["type"] in ("WordPiece", "WordLevel")
        and not any(token["normalized"] or " " in token["content"] for token in parts["added_tokens"])
    )


def _count_words(backend: Tokenizer, texts: Iterable[pa.StringArray], specials: list[str]) -> Counter[str]:
    """How often each normalised word occurs, without special tokens."""
    raw: Counter[str] = Counter()
    for array in texts:
        for i in range(0, len(array), TEXTS_PER_CALL):
            counted = pc.value_counts(pc.split_pattern(array[i : i + TEXTS_PER_CALL], " ").flatten())
            words, numbers = counted.flatten()
            raw.update(dict(zip(words.to_pylist(), numbers.to_pylist(), strict=True)))
    counts: Counter[str] = Counter()
    for word, number in raw.items():
        for special in specials:
            word = word.replace(special, " ")
        for part, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(word)):
            counts[part] += number
    return counts
