"""Pruned vocabularies (WordPiece, BPE and Unigram), which keep the tokens that occur in the user's texts."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError, shorten
from tasks.tokens.tokeniser import Tokeniser

# RoBERTa and similar models count positions from the id of the padding token, so it must not change. The
# tokens before it are kept if there are at most this many; models with more do not count in this way.
MAX_TOKENS_BEFORE_PADDING = 10
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def prune_vocabulary(
    tokeniser: Tokeniser, texts: Iterable[pa.StringArray], size: int
) -> tuple[Tokeniser, np.ndarray]:
    """Keep only the tokens that occur in `texts`, and what is needed to split any other text.

    Special tokens and all tokens of one character, such as "a" and "##a", are kept; of a BPE vocabulary the
    tokens that are not merged from others (for RoBERTa, one for each byte). Words that lose their token are
    therefore split into shorter tokens, and no word becomes unknown. Text whose tokens are all kept is split
    as before.

    Args:
        texts: arrays of texts, iterated once.
        size: the maximum number of tokens; the most frequent ones are kept, of equally frequent ones those
            with the lowest ids. A BPE token is kept together with the tokens that it is merged from.

    Returns:
        The smaller tokeniser; (n,) int64, the id in `tokeniser` of each of its tokens, ascending.

    Raises:
        UserError: the vocabulary is of another type or lacks a character, or `size` is too small.
    """
    backend = json.loads(tokeniser.hf.backend_tokenizer.to_str())
    model, ids_by_token = backend["model"], tokeniser.hf.get_vocab()
    fixed = {*tokeniser.hf.all_special_tokens, *(token["content"] for token in backend["added_tokens"])}
    fixed |= _required_tokens(model, fixed)
    if tokeniser.pad_id <= MAX_TOKENS_BEFORE_PADDING:
        fixed |= {token for token, number in ids_by_token.items() if number < tokeniser.pad_id}
    parts = _parts(model)
    fixed = _with_parts(fixed, parts)
    if missing := sorted(fixed - ids_by_token.keys()):
        raise UserError(
            f"this vocabulary cannot be pruned, since {len(missing):,} of its characters are not tokens of "
            f"their own: {shorten(missing)}",
            hint="use `student.vocabulary=teacher` (the whole vocabulary)",
        )
    if size < len(fixed):
        raise UserError(
            f"student.vocabulary_size={size} is too small for the tokens that are always kept: special ones, "
            "single characters, and those with a character that is not a token itself",
            expected=f"{len(fixed):,} or more",
        )
    counts = np.zeros(max(ids_by_token.values()) + 1, np.int64)
    for array in texts:
        counts += np.bincount(tokeniser.token_ids(array).values, minlength=len(counts))
    ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    kept = set(fixed)
    for token in tokeniser.hf.convert_ids_to_tokens(ranked):
        added = _with_parts({token}, parts) - kept
        if len(kept) + len(added) > size:
            break
        kept |= added
    kept_ids = np.sort([ids_by_token[token] for token in kept])
    return _renumbered(tokeniser, backend, kept_ids), kept_ids


def _required_tokens(model: dict[str, Any], specials: set[str]) -> set[str]:
    """The tokens without which some text would become unknown or be split in another way."""
    if model["type"] == "WordPiece":
        characters = set("".join(model["vocab"].keys() - specials))
        return characters | {model["continuing_subword_prefix"] + character for character in characters}
    if model["type"] == "BPE":
        return model["vocab"].keys() - _parts(model).keys()
    if model["type"] != "Unigram":
        raise UserError(
            f"a vocabulary of the type {model['type']} cannot be pruned",
            expected="a teacher whose tokeniser is WordPiece, BPE or Unigram",
            hint="use `student.vocabulary=teacher` (the whole one) or `student.vocabulary=word`",
        )
    scores = dict(model["vocab"])
    single = {token for token in scores if len(token) == 1}
    with_other_characters = {token for token in scores if not single.issuperset(token)}
    single_bytes = {token for token in scores if model.get("byte_fallback") and _BYTE.fullmatch(token)}
    # An unknown character scores a fixed amount less than the token with the lowest score.
    lowest = min(scores, key=scores.__getitem__)
    return single | with_other_characters | single_bytes | {lowest, *_unknown_token(model)}


def _unknown_token(model: dict[str, Any]) -> list[str]:
    """The token of a Unigram vocabulary for unknown characters, if it has one."""
    return [] if model["unk_id"] is None else [model["vocab"][model["unk_id"]][0]]


def _parts(model: dict[str, Any]) -> dict[str, set[str]]:
    """For each token that BPE merges from others, these other tokens."""
    parts: dict[str, set[str]] = defaultdict(set)
    for first, second in model.get("merges", ()):
        parts[_merged(model, first, second)] |= {first, second}
    return parts


def _merged(model: dict[str, Any], first: str, second: str) -> str:
    """The token that BPE merges from two others."""
    return first + second.removeprefix(model["continuing_subword_prefix"] or "")


def _with_parts(tokens: set[str], parts: Mapping[str, set[str]]) -> set[str]:
    """The tokens, those that they are merged from, and so on."""
    found: set[str] = set()
    while tokens:
        found |= tokens
        tokens = set().union(*(parts.get(token, ()) for token in tokens)) - found
    return found


def _renumbered(tokeniser: Tokeniser, backend: dict[str, Any], kept_ids: np.ndarray) -> Tokeniser:
    """The tokeniser with the tokens whose ids are `kept_ids`, numbered in this order."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    old, model = tokeniser.hf, backend["model"]
    ids = {str(old.convert_ids_to_tokens(token)): number for number, token in enumerate(kept_ids.tolist())}
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":
        model["unk_id"] = next((ids[token] for token in _unknown_token(model)), None)
        model["vocab"] = [vocabulary[token] for token in kept_ids if token < len(vocabulary)]
    else:
        model["vocab"] = {token: ids[token] for token in ids if token in vocabulary}
    if model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if _merged(model, *pair) in ids]
    for added in backend["added_tokens"]:
        added["id"] = ids[added["content"]]
    processor = backend["post_processor"] or {}
    for part in processor.get("processors", [processor]):
        part |= {name: [part[name][0], ids[part[name][0]]] for name in ("sep", "cls") if name in part}
        for special in part.get("special_tokens", {}).values():
            special["ids"] = [ids[token] for token in special["tokens"]]
    hf = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        model_input_names=old.model_input_names,
        model_max_length=old.model_max_length,
        **old.special_tokens_map,
    )
    return Tokeniser(hf)
