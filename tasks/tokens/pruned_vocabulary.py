"""WordPiece vocabularies without the tokens that the user's texts do not contain."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError, shorten
from tasks.tokens.tokeniser import Tokeniser


def prune_vocabulary(
    tokeniser: Tokeniser, texts: Iterable[pa.StringArray], size: int
) -> tuple[Tokeniser, np.ndarray]:
    """Keep only the tokens that occur in `texts`, and what is needed to split any other text.

    Special tokens and all tokens of one character, such as "a" and "##a", are kept. Words that lose their
    token are therefore split into shorter tokens, and no word becomes unknown. Text whose tokens are all kept
    is split as before.

    Args:
        texts: arrays of texts, iterated once.
        size: the maximum number of tokens; the most frequent ones are kept, of equally frequent ones those
            with the lowest ids.

    Returns:
        The smaller tokeniser; for each of its token ids the id of the same token in `tokeniser`, ascending.

    Raises:
        UserError: this is not WordPiece, a character is not in the vocabulary, or `size` is too small.
    """
    backend = json.loads(tokeniser.hf.backend_tokenizer.to_str())
    model, ids_by_token = backend["model"], tokeniser.hf.get_vocab()
    fixed = {*tokeniser.hf.all_special_tokens, *(token["content"] for token in backend["added_tokens"])}
    fixed |= _characters(model, fixed)
    if missing := sorted(fixed - ids_by_token.keys()):
        raise UserError(
            f"this vocabulary cannot be pruned, since {len(missing):,} of its characters are not tokens of "
            f"their own: {shorten(missing)}",
            hint="use `student.vocabulary=wordpiece`",
        )
    if size < len(fixed):
        raise UserError(
            f"student.vocabulary_size={size} is too small for the special tokens and single characters",
            expected=f"{len(fixed):,} or more",
        )
    counts = np.zeros(max(ids_by_token.values()) + 1, np.int64)
    for array in texts:
        counts += np.bincount(tokeniser.token_ids(array).values, minlength=len(counts))
    always = np.array([ids_by_token[token] for token in fixed])
    counts[always] = 0
    ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    kept_ids = np.sort(np.concatenate([always, ranked[: size - len(fixed)]]))
    return _renumbered(tokeniser, backend, kept_ids), kept_ids


def _characters(model: dict[str, Any], specials: set[str]) -> set[str]:
    """Each character of a WordPiece vocabulary, as a token at the start of a word and within one."""
    if model["type"] != "WordPiece":
        raise UserError(
            f"a vocabulary of the type {model['type']} cannot be pruned",
            expected="a teacher whose tokeniser is WordPiece (BERT, ELECTRA, DistilBERT, MPNet, ...)",
            hint="use `student.vocabulary=wordpiece` (the whole vocabulary) or `student.vocabulary=word`",
        )
    characters = set("".join(model["vocab"].keys() - specials))
    return characters | {model["continuing_subword_prefix"] + character for character in characters}


def _renumbered(tokeniser: Tokeniser, backend: dict[str, Any], kept_ids: np.ndarray) -> Tokeniser:
    """The tokeniser with the tokens whose ids are `kept_ids`, numbered in this order."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    old = tokeniser.hf
    ids = {str(old.convert_ids_to_tokens(token)): number for number, token in enumerate(kept_ids.tolist())}
    vocabulary = backend["model"]["vocab"]
    backend["model"]["vocab"] = {token: ids[token] for token in ids if token in vocabulary}
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
