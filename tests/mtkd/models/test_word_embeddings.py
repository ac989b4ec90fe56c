"""Embeddings from files of word vectors, in the formats of word2vec and GloVe."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from mtkd.models.multitask import MultiTaskModel
from mtkd.models.word_embeddings import word_embeddings
from tasks.common.errors import UserError
from tasks.tokens.tokeniser import Tokeniser

VECTORS = {"cat": [0.5, -1.25, 3.0], "sat": [1e-3, 2.0, -0.25], "the": [0.0, 1.0, 2.0]}
LINES = [f"{word} {' '.join(map(str, vector))}" for word, vector in VECTORS.items()]


@pytest.fixture
def vocabulary_tokeniser() -> Tokeniser:
    """A vocabulary of the, cat, sat, rare and five special tokens."""
    return Tokeniser.word_level([pa.array(["the cat sat", "the rare cat"])])


@pytest.mark.parametrize(
    ("lines", "ending"),
    [
        (LINES, "\n"),
        (["3 3", *LINES], "\n"),
        (["3 3", *(line + " " for line in LINES)], "\n"),  # as word2vec writes them
        (LINES, "\r\n"),
        ([LINES[0], ". . . 1 2 3", "New\u2028York 1 2 3", "unknown x y z", *LINES[1:], "the 9 9 9"], "\n"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_words_in_the_file_get_its_vectors(
    lines: list[str], ending: str, zipped: bool, vocabulary_tokeniser: Tokeniser, tmp_path: Path, capsys: Any
) -> None:
    raw, file = (ending.join(lines) + ending).encode(), tmp_path / "vectors"
    file.write_bytes(gzip.compress(raw) if zipped else raw)
    torch.manual_seed(1)
    table = word_embeddings(file, vocabulary_tokeniser)
    ids = vocabulary_tokeniser.hf.get_vocab()
    assert table.shape == (9, 3) == (vocabulary_tokeniser.vocab_size, 3)
    for word, vector in VECTORS.items():
        assert table[ids[word]].tolist() == pytest.approx(vector)
    assert 0 < table[ids["rare"]].abs().max() < 0.6 and table[ids["[PAD]"]].abs().max() > 0
    assert f"3 of the 4 words of the vocabulary start from the vectors in {file}" in capsys.readouterr().err
    torch.manual_seed(1)
    assert torch.equal(word_embeddings(file, vocabulary_tokeniser), table)


def test_a_file_without_any_word_of_the_vocabulary_is_rejected(
    vocabulary_tokeniser: Tokeniser, tmp_path: Path
) -> None:
    (tmp_path / "vectors.txt").write_text("dog 1 2 3\n")
    with pytest.raises(UserError, match="no vector for any of the 4 words"):
        word_embeddings(tmp_path / "vectors.txt", vocabulary_tokeniser)


SMALL = {"projection_size": 8, "hidden_size": 6, "output_size": 8}
RUN = [
    "student.max_length=16",
    "student.head_hidden_size=0",
    *(f"student.bilstm.{k}={v}" for k, v in SMALL.items()),
]


def command(teacher: Path, out: Path, *sets: str) -> list[str]:
    rows = ["--tasks", "rte", "--data", "pocket", "--limit", "16", "--eval-limit", "8", "--epochs", "1"]
    options = [word for setting in (*RUN, *sets) for word in ("--set", setting)]
    return [
        "distill",
        "mkd-lstm",
        *rows,
        "--teacher",
        str(teacher),
        "--out",
        str(out),
        "--lr",
        "1e-12",
        *options,
    ]


def test_a_student_starts_from_the_file_and_does_not_need_it(
    tiny_teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    file, out = tmp_path / "vectors.txt", tmp_path / "run"
    file.write_text("the 1 2 3 4\na 5 6 7 8\n")
    given = command(tiny_teacher, out, "student.vocabulary=word", f"student.bilstm.embeddings={file}")
    answered = mtkd(*given)
    assert answered.code == 0 and "2 of the" in answered.err, answered.err
    record = json.loads((out / "run.json").read_text())
    assert record["identity"]["settings"]["student"]["bilstm"]["embeddings"] == str(file)
    file.write_text("the 1 2 3 4\na 5 6 7 9\n")
    again = mtkd(*given)
    assert again.code == 2 and "the embedding_file has changed since the run" in again.err
    file.unlink()
    model = MultiTaskModel.load(out)
    table, ids = model.encoder.embeddings.weight, model.tokeniser.hf.get_vocab()
    assert table[[ids["the"], ids["a"]]].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("sets", "parts"),
    [
        (
            ["student.vocabulary=word", "student.bilstm.embedding_size=5", "student.bilstm.embeddings=v.txt"],
            ["have width 5, but those of", " 4"],
        ),
        (["student.bilstm.embeddings=v.txt"], ["reads tokens of the teacher", "student.vocabulary=word"]),
        (
            ["student.vocabulary=word", "student.bilstm.embeddings=techer"],
            ["student.bilstm.embeddings=techer does not exist"],
        ),
    ],
)
def test_incompatible_students_are_errors(
    sets: list[str],
    parts: list[str],
    tiny_teacher: Path,
    tmp_path: Path,
    mtkd: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.txt").write_text("the 1 2 3 4\n")
    answered = mtkd(*command(tiny_teacher, tmp_path / "run", *sets))
    assert answered.code == 2 and all(part in answered.err for part in parts), answered.err
    assert not (tmp_path / "run").exists()
