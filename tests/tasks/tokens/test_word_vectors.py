"""Word vectors from text files of GloVe and word2vec."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.common.errors import UserError
from tasks.tokens.word_vectors import read_word_vectors

GLOVE = "the 0.5 -1 2e-1\nnaïve 1 2 3\n. . . 4 5 6\nthe 9 9 9\n\u2028 7 8 9\n"
VECTORS = {"the": [0.5, -1, 0.2], "naïve": [1, 2, 3], ". . .": [4, 5, 6], "\u2028": [7, 8, 9]}


@pytest.mark.parametrize("header", ["", "5 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_words_and_vectors_are_read(
    tmp_path: Path, header: str, end: str, pack: Callable[[bytes], bytes]
) -> None:
    text = (header + GLOVE).replace("\n", end)
    (tmp_path / "v.txt").write_bytes(pack(text.encode()))
    words, matrix = read_word_vectors(tmp_path / "v.txt")
    assert words == list(VECTORS) and matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, np.array(list(VECTORS.values()), np.float32))
    some, rows = read_word_vectors(str(tmp_path / "v.txt"), {". . .", "The", "the"})
    assert some == ["the", ". . ."]
    np.testing.assert_array_equal(rows, matrix[[0, 2]])
    none, empty = read_word_vectors(tmp_path / "v.txt", set())
    assert none == [] and empty.shape == (0, 3)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"the 1 2\nof 1\n", "line 2: not a word and 2"),
        (b"the 1 2\nof 1 x\n", "line 2: not a word and 2"),
        (b"the 1 nan\n", "line 1: not a word and 2 finite"),
        (b"3000000 2\nin \x00\x9f\x12\xff\x80", "binary file of word2vec"),
        (b"the\n", "line 1"),
        (b"", "has no word vectors"),
        (b"10 3\n", "has no word vectors"),
        (gzip.compress(b"the 1 2\n" * 900, mtime=0)[:-9], "cannot read the word vectors"),
    ],
)
def test_a_damaged_file_is_one_error(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(UserError, match=part):
        read_word_vectors(tmp_path / "v.txt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*nowhere\.txt"):
        read_word_vectors(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="is a directory"):
        read_word_vectors(tmp_path)
