"""Word vectors from text files, as word2vec and GloVe write them: a word and its numbers per line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mtkd.storage.distributed import launched
from tasks.errors import UserError
from tasks.progress import say
from tasks.tokeniser import Tokeniser

STD = 0.1  # of the vectors of words that the file lacks


def word_vectors(file: Path, tokeniser: Tokeniser) -> Tensor:
    """A table of embeddings (V, width) with the vectors of a file; the caller seeds torch for the others.

    Words are looked up as the vocabulary spells them, in lower case; of several vectors, the first counts.

    Args:
        file: text, which may be gzipped: a word and `width` numbers per line, separated by single spaces. The
            first line may state the number of words and the width, as word2vec writes it.

    Raises:
        UserError: a line has other numbers, or no word of the vocabulary is in the file.
    """
    ids: dict[str, int] = tokeniser.hf.get_vocab()
    words = len(ids) - len(tokeniser.hf.all_special_tokens)
    table, found = torch.empty(0), set()
    for number, line in enumerate(_lines(file), 1):
        word, *values = line.rstrip(" \r\n").split(" ")
        if number == 1:
            header = len(values) == 1 and word.isdigit() and values[0].isdigit()
            width = int(values[0]) if header else len(values)
            if not width:
                raise _invalid(file, 1, "has no numbers")
            table = torch.empty(len(ids), width).normal_(std=STD)
            if header:
                continue
        if word not in ids or word in found or len(values) > width:  # longer: a word that contains spaces
            continue
        table[ids[word]] = torch.from_numpy(_numbers(file, number, values, width))
        found.add(word)
    if not found:
        raise UserError(
            f"{file} has no vector for any of the {words:,} words of the vocabulary",
            expected="a text file of word vectors (word2vec, GloVe), with lower-case words",
        )
    if launched().first:
        say(f"{len(found):,} of the {words:,} words of the vocabulary start from the vectors in {file}")
    return table


def _lines(file: Path) -> Iterator[str]:
    with open(file, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    opened = gzip.open if zipped else open
    try:
        with opened(file, "rt", encoding="utf-8", errors="replace", newline="\n") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {file}: {error}") from error


def _numbers(file: Path, line: int, values: list[str], width: int) -> np.ndarray:
    if len(values) != width:
        raise _invalid(file, line, f"has {len(values)} numbers instead of {width}")
    try:
        numbers = np.array(values, np.float32)
    except ValueError as error:
        raise _invalid(file, line, str(error)) from error
    if not np.isfinite(numbers).all():
        raise _invalid(file, line, "has a number that is not finite")
    return numbers


def _invalid(file: Path, line: int, problem: str) -> UserError:
    return UserError(
        f"line {line} of {file} is not a word with its vector: it {problem}",
        expected="a word and the same number of numbers on each line, separated by single spaces",
        hint="convert a binary file to text first",
    )
