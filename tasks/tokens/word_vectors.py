"""Word vectors in text files: one word per line and then its values, as in GloVe and word2vec."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from tasks.common.errors import UserError
from tasks.common.reading import require_file
from tasks.data.text_lines import limited_lines

_EXPECTED = (
    "a word and then its values on each line, separated by spaces (GloVe, or the text format of word2vec)"
)
_GZIP = b"\x1f\x8b"


def read_word_vectors(path: str | Path, words: Collection[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Read the vectors of words from a text file in the format of GloVe or word2vec, which may be gzipped.

    The first line of word2vec's format (the number of words and of values) is skipped. If a word has several
    lines, the first one counts. Words are compared exactly; most files hold lower-cased words.

    Args:
        words: read only these (a set or dict is fastest); None = all.

    Returns:
        The n words that the file has, in its order, and their (n, d) float32 vectors.

    Raises:
        UserError: the file cannot be read, has no vectors, or has a line that is not a word and d numbers.
    """
    words_read: dict[str, None] = {}
    values = bytearray()
    size = 0
    try:
        with open(require_file(Path(path)), "rb") as raw:
            opened = gzip.open if raw.read(2) == _GZIP else open
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(limited_lines(lines, str(path)), 1):
                if not size:
                    parts = line.split()
                    if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
                        continue
                    size = len(parts) - 1
                word, *numbers = line.rstrip().rsplit(" ", size)  # some words contain spaces
                if word in words_read or (
                    words is not None and word not in words and len(numbers) == size > 0
                ):
                    continue
                values += _vector(numbers, size, f"{path}, line {number}").tobytes()
                words_read[word] = None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"cannot read the word vectors {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not size:
        raise UserError(f"{path} has no word vectors", expected=_EXPECTED)
    return list(words_read), np.frombuffer(bytes(values), np.float32).reshape(-1, size)


def _vector(numbers: list[str], size: int, location: str) -> np.ndarray:
    """(size,) float32; UserError if these are not as many finite numbers."""
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        vector = np.zeros(0, np.float32)
    if not len(vector) == size > 0 or not np.isfinite(vector).all():
        raise UserError(
            f"{location}: not a word and {size or 'some'} finite numbers",
            expected=_EXPECTED,
            hint="convert a binary file of word2vec to its text format first",
        )
    return vector
