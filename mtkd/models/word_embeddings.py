"""Word embeddings that start from the vectors of word2vec or GloVe."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tasks.common.errors import UserError
from tasks.common.progress import say
from tasks.tokens.tokeniser import Tokeniser
from tasks.tokens.word_vectors import read_word_vectors

STD = 0.1  # standard deviation of the random vectors of words that the file lacks


def word_embeddings(file: Path, tokeniser: Tokeniser) -> Tensor:
    """Build word embeddings (V, width) from a file of vectors; words that it lacks get random vectors.

    Words are looked up as the vocabulary spells them, in lower case. The caller seeds torch.

    Args:
        file: see `tasks.tokens.word_vectors.read_word_vectors`.

    Raises:
        UserError: the file cannot be read, or has none of the words of the vocabulary.
    """
    ids: dict[str, int] = tokeniser.hf.get_vocab()
    n_words = len(ids) - len(tokeniser.hf.all_special_tokens)
    words, vectors = read_word_vectors(file, ids.keys())
    if not words:
        raise UserError(
            f"{file} has no vector for any of the {n_words:,} words of the vocabulary",
            expected="a text file of word vectors (word2vec, GloVe), with lower-case words",
        )
    table = torch.empty(tokeniser.vocab_size, vectors.shape[1]).normal_(std=STD)
    table[[ids[word] for word in words]] = torch.from_numpy(vectors.copy())
    say(f"{len(words):,} of the {n_words:,} words of the vocabulary start from the vectors in {file}")
    return table
