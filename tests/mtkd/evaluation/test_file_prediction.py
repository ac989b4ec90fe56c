"""`mtkd predict`: formats, streams, memory, and failures."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mtkd
from mtkd.evaluation.file_prediction import predict_file
from mtkd.models.encoders.static import StaticConfig, StaticEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.runtime import OnnxModel
from tasks.checks.truncated_rows import TruncatedRows
from tasks.common.errors import UserError
from tasks.data.rows import Rows
from tasks.task import Task
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser

TASK = Task("topics", "classify", ("text",), labels=("short", "long"))
ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f'{"word " * (n % 7)}{n}, "naïve"', "more": {"a": [n, None]}, "empty": None}
    for n in range(23)
]


def predict_by_length(rows: Rows, truncated: TruncatedRows) -> Iterator[dict[str, Any]]:
    """Predict `long` for texts of more than 20 characters."""
    for text in rows.texts[0].to_pylist():
        long = len(text) > 20
        shares = {"short": 1.0 - long, "long": float(long)}
        yield {"prediction": TASK.labels[long], "prediction_id": int(long), "probabilities": shares}


def expected(row: dict[str, Any]) -> str:
    return "long" if len(row["text"]) > 20 else "short"


def write_jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file with libraries other than the one under test."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    if ".jsonl" in path.suffixes:
        return [json.loads(line) for line in text.splitlines()]
    quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
    mark = "\t" if path.suffix == ".tsv" else ","
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, quoting=quoting))


@pytest.mark.parametrize(
    "name", ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz", "out.tsv", "out.parquet"]
)
def test_every_format_is_written_and_read_again(tmp_path: Path, name: str) -> None:
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / name
    assert predict_file(predict_by_length, TASK, source, out, block=5) == 23
    found = read(out)
    assert [row["text"] for row in found] == [row["text"] for row in ROWS]
    assert [row["prediction"] for row in found] == [expected(row) for row in ROWS]
    if "jsonl" in name:
        assert [{key: row[key] for key in ROWS[0]} for row in found] == ROWS
    if "csv" in name or "tsv" in name:
        assert [json.loads(row["more"]) for row in found] == [row["more"] for row in ROWS]
        assert [row["probability_long"] == "1.0" for row in found] == [expected(r) == "long" for r in ROWS]
        assert {row["empty"] for row in found} == {""}
    else:
        assert [row["probabilities"]["short"] == 1 for row in found] == [expected(r) == "short" for r in ROWS]
    again = tmp_path / f"again-{name}"
    with pytest.raises(UserError, match="already has the column 'prediction'") as refused:
        predict_file(predict_by_length, TASK, out, again, block=4, probabilities=False)
    assert refused.value.hint is not None and "`replace=True`" in refused.value.hint and not again.exists()
    assert predict_file(predict_by_length, TASK, out, again, block=4, probabilities=False, replace=True) == 23
    added = [key for key in found[0] if key != "empty"]
    assert [{key: row[key] for key in added} for row in read(again)] == [
        {key: row[key] for key in added} for row in found
    ]


def test_a_text_file_has_one_text_per_line_unless_a_format_is_named(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"text\r\na, b\n\n  \n c\n")
    assert predict_file(predict_by_length, TASK, source, tmp_path / "out.csv") == 3
    assert [row["text"] for row in read(tmp_path / "out.csv")] == ["text", "a, b", " c"]
    assert predict_file(predict_by_length, TASK, source, tmp_path / "out.txt", format="tsv") == 4
    written = (tmp_path / "out.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in written] == ["text", "a, b", "", "  ", " c"]


def test_predictions_without_probabilities_are_one_column(tmp_path: Path) -> None:
    predict_file(
        predict_by_length, TASK, write_jsonl(tmp_path / "a.jsonl"), tmp_path / "b.csv", probabilities=False
    )
    assert list(read(tmp_path / "b.csv")[0]) == [*ROWS[0], "prediction"]


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.tsv", "out.parquet"])
@pytest.mark.parametrize("source", ["header.csv", "header.tsv", "empty.csv", "empty.jsonl", "empty.parquet"])
def test_a_file_without_rows_gives_an_output_without_rows(source: str, out: str, tmp_path: Path) -> None:
    file = tmp_path / source
    file.write_text({"header.csv": "id,text\n", "header.tsv": "id\ttext\n"}.get(source, ""))
    if source == "empty.parquet":
        pq.write_table(pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), file)
    with pytest.warns(mtkd.MtkdWarning, match=f"{source} has no rows"):
        assert predict_file(predict_by_length, TASK, file, tmp_path / out) == 0
    assert read(tmp_path / out) == []
    one_row = write_jsonl(
        tmp_path / "one.jsonl",
        [{"text": "a"} if source in ("empty.csv", "empty.jsonl") else {"id": 1, "text": "a"}],
    )
    predict_file(predict_by_length, TASK, one_row, tmp_path / f"one-{out}")
    if out.endswith("parquet"):
        names = [pq.read_schema(tmp_path / name).names for name in (out, f"one-{out}")]
    else:
        names = [(tmp_path / name).read_text().partition("\n")[0] for name in (out, f"one-{out}")]
    assert names[0] == names[1] or out == "out.jsonl"


def test_a_header_without_the_column_of_the_task_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,txt\n")
    with pytest.raises(UserError, match="'text'"):
        predict_file(predict_by_length, TASK, tmp_path / "a.csv", tmp_path / "b.csv")
    (tmp_path / "a.csv").write_text("text,prediction\n")
    with pytest.raises(UserError, match="already has the column 'prediction'"):
        predict_file(predict_by_length, TASK, tmp_path / "a.csv", tmp_path / "b.csv")
    assert not (tmp_path / "b.csv").exists()


class EndlessFile(io.RawIOBase):
    """An endless file of numbered rows that counts how many were read."""

    rows = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        line = b'{"text": "row %d"}\n' % self.rows
        buffer[: len(line)] = line
        self.rows += 1
        return len(line)


def test_no_more_of_standard_input_is_read_than_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EndlessFile()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(source)))
    seen: list[tuple[int, int]] = []

    class EnoughRows(Exception):
        pass

    def predict(rows: Rows, truncated: TruncatedRows) -> Iterator[dict[str, Any]]:
        if len(seen) == 5:
            raise EnoughRows
        seen.append((source.rows, len(rows)))
        return predict_by_length(rows, truncated)

    with pytest.raises(EnoughRows):
        predict_file(predict, TASK, Path("-"), Path("-"), block=2000)
    assert [count for _, count in seen] == [2000] * 5
    for number, (rows, _) in enumerate(seen, 1):
        assert rows < 2000 * number + 1000, "8 KB of lines are buffered"
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[9999])["text"] == "row 9999" and len(lines) == 10_000


@pytest.mark.parametrize("names", [("/dev/stdin", "/dev/stdout"), ("/dev/fd/0", "/proc/self/fd/1")])
def test_device_files_name_standard_input_and_output(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a word"}\n{"text": "more"}\n')))
    assert predict_file(predict_by_length, TASK, *map(Path, names)) == 2
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["a word", "more"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    sizes = []
    for count in (1000, 10_000):
        source = tmp_path / f"{count}.csv"
        source.write_text("text;other\n" + "".join(f"row {n};{'x' * 100}\n" for n in range(count)), "utf-8")
        tracemalloc.start()
        assert predict_file(predict_by_length, TASK, source, tmp_path / "out.jsonl", block=250) == count
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sizes[1] < 1.3 * sizes[0] and sizes[1] < source.stat().st_size, "the file has about 1.1 MB"


def test_an_interrupted_prediction_leaves_and_replaces_nothing(tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out.csv"
    out.write_text("before")

    def interrupted(rows: Rows, truncated: TruncatedRows) -> Iterator[dict[str, Any]]:
        if "22," in rows.texts[0].to_pylist()[-1]:
            raise KeyboardInterrupt
        return predict_by_length(rows, truncated)

    with pytest.raises(KeyboardInterrupt):
        predict_file(interrupted, TASK, source, out, block=5)
    assert out.read_text() == "before" and len(list(tmp_path.iterdir())) == 2


def test_a_file_is_checked_before_its_first_row_is_predicted(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl")
    source.write_text(source.read_text() + '{"id": 1}\n')
    with pytest.raises(UserError, match=r"in\.jsonl:24: column 'text': null instead of text"):
        predict_file(lambda *_: pytest.fail("predicted"), TASK, source, tmp_path / "o.csv", block=5)


def test_rows_with_empty_texts_are_counted_in_a_warning(tmp_path: Path) -> None:
    texts = ["a word", "", " \t", "more words"]
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    with pytest.warns(mtkd.MtkdWarning, match=r"2 rows of .*in\.jsonl with an empty text"):
        assert predict_file(predict_by_length, TASK, source, tmp_path / "out.jsonl", block=3) == 4


def test_all_candidates_of_a_group_are_ranked_together(tmp_path: Path) -> None:
    rank = Task("r", "rank", ("text",), labels=("no", "yes"), group="id", positive=1)
    sizes = []

    def predict(rows: Rows, truncated: TruncatedRows) -> Iterator[dict[str, Any]]:
        sizes.append(len(rows))
        return predict_by_length(rows, truncated)

    for suffix in ("jsonl", "parquet"):
        predict_file(predict, rank, write_jsonl(tmp_path / "in.jsonl"), tmp_path / f"o.{suffix}", block=5)
    predict_file(predict, rank, tmp_path / "o.parquet", tmp_path / "o.csv", block=5, replace=True)
    assert sizes == [23, 23, 23]


@pytest.mark.parametrize(
    ("source", "out", "more", "message"),
    [
        ("gone.jsonl", "o.csv", {}, r"no such file: .*gone\.jsonl \(did you mean .*one\.jsonl'\?\)"),
        ("one.jsonl", "o.txt", {}, "`out='.*o.txt'`: the name does not say the format"),
        ("one.jsonl", "o.csv", {"format": "tsv"}, "`format='tsv'` has no effect"),
        ("one.jsonl", "-", {"format": "parquet"}, "`out='-'` cannot be parquet"),
        ("one.jsonl", "-", {"format": "xls"}, "unknown format 'xls'"),
        ("one.jsonl", "o.tsv", {}, r"one\.jsonl:1: 'a\\tb' has a tab"),
        (
            "two.jsonl",
            "o.parquet",
            {"block": 1},
            r"two\.jsonl:2: from here on, a column has values of another",
        ),
    ],
)
def test_invalid_usage_is_one_error(
    tmp_path: Path, source: str, out: str, more: dict[str, Any], message: str
) -> None:
    write_jsonl(tmp_path / "one.jsonl", [{"text": "a\tb"}])
    write_jsonl(tmp_path / "two.jsonl", [{"text": "a", "n": 1}, {"text": "b", "n": "x"}])
    place = Path(out) if out == "-" else tmp_path / out
    with pytest.raises(UserError, match=message):
        predict_file(predict_by_length, TASK, tmp_path / source, place, **more)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.jsonl", "two.jsonl"]


@pytest.fixture(scope="module")
def models(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A saved static model with random weights and two heads, and its export."""
    pytest.importorskip("onnxruntime")
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    encoder = StaticEncoder(StaticConfig(vocab_size=30522, width=8, hidden_size=12, output_size=10))
    model = MultiTaskModel(encoder, resolve("rte,mnli"), Tokeniser.load(str(tiny_encoder)), ModelInfo(40))
    for weight in model.parameters():
        if weight.ndim == 2:  # large weights, so that predictions differ between rows
            torch.nn.init.normal_(weight, std=0.35)
    model.save(place / "model")
    mtkd.export(place / "model", out=place / "export")
    return place / "model", place / "export"


def test_the_only_task_of_a_model_needs_no_name(tiny_encoder: Path, models: tuple[Path, Path]) -> None:
    encoder = StaticEncoder(StaticConfig(vocab_size=30522, width=8, hidden_size=12, output_size=10))
    module = MultiTaskModel(encoder, [TASK], Tokeniser.load(str(tiny_encoder)), ModelInfo(40))
    assert mtkd.Model(module).predict(None, ["a b"]) == mtkd.Model(module).predict("topics", ["a b"])
    with pytest.raises(UserError, match="no task was given"):
        mtkd.load(models[0]).predict(None, ["a b"])


WORDS = ["cat", "river", "slowly", "seven", "music", "blue", "they", "iron", "never", "under", "paper"]
PAIRS = [
    {"id": n, "sentence1": " ".join(WORDS[n % 7 : n % 7 + n % 4 + 1]), "sentence2": WORDS[n % 11]}
    for n in range(30)
]


def test_models_and_their_exports_predict_the_same(models: tuple[Path, Path], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", PAIRS)
    mtkd.predict(models[0], "rte", source, tmp_path / "a.jsonl", block=7, batch=4, threads=1)
    mtkd.predict(models[1], "rte", source, tmp_path / "b.parquet", block=11, threads=1)
    pairs = [(row["sentence1"], row["sentence2"]) for row in PAIRS]
    rows = zip(
        read(tmp_path / "a.jsonl"),
        read(tmp_path / "b.parquet"),
        mtkd.load(models[0]).predict("rte", pairs),
        PAIRS,
        strict=True,
    )
    for one, other, alone, given in rows:
        assert one["prediction"] == other["prediction"] == alone["prediction"] and one["id"] == given["id"]
        for found in (one, other):
            assert found["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-4)


def test_truncated_rows_are_counted_in_one_warning(models: tuple[Path, Path], tmp_path: Path) -> None:
    long = {"sentence1": "word " * 41, "sentence2": "word"}
    pairs: list[dict[str, Any]] = [long, PAIRS[0], {"sentence1": "word " * 40, "sentence2": "word"}, long]
    source = write_jsonl(tmp_path / "in.jsonl", pairs)
    for number, model in enumerate(models):
        with pytest.warns(mtkd.MtkdWarning) as warned:
            mtkd.predict(model, "rte", source, tmp_path / f"{number}.jsonl", block=1, threads=1)
        (message,) = (str(warning.message) for warning in warned)
        assert message.startswith(f"2 rows of {source} with more than 40 tokens per text: the model")
    for loaded in (mtkd.load(models[0]), OnnxModel(models[1], threads=1)):
        with pytest.warns(mtkd.MtkdWarning, match="1 row with more than 40 tokens per text"):
            loaded.predict("rte", pairs[:2])


# Modules that are missing with only onnxruntime, tokenizers, numpy, pyarrow, pydantic, click and rich.
MISSING = (
    "torch", "transformers", "datasets", "pandas", "sklearn", "scipy", "safetensors",
    "accelerate", "huggingface_hub", "psutil", "matplotlib", "spacy", "nltk",
)  # fmt: skip
WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from mtkd.cli.main import main

main()
"""


def without_torch(*words: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line in a process in which importing these packages fails."""
    command = [sys.executable, "-c", WITHOUT, *map(str, words)]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def test_the_command_line_predicts_without_torch(models: tuple[Path, Path], tmp_path: Path) -> None:
    text = "id|sentence1|sentence2\n" + "".join(
        f"{row['id']}|{row['sentence1']}|{row['sentence2']}\n" for row in PAIRS
    )
    words = ("predict", "--model", models[1], "--task", "rte", "--in", "-", "--out", "-", "--format", "csv")
    done = without_torch(*words, "--no-probabilities", "--threads", 1, text=text)
    assert done.returncode == 0, done.stderr
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    source = write_jsonl(tmp_path / "in.jsonl", PAIRS)
    mtkd.predict(models[1], "rte", source, tmp_path / "out.jsonl")
    assert [row["prediction"] for row in found] == [row["prediction"] for row in read(tmp_path / "out.jsonl")]
    assert list(found[0]) == ["id", "sentence1", "sentence2", "prediction"]


def test_a_killed_command_leaves_nothing(models: tuple[Path, Path], tmp_path: Path) -> None:
    words = (
        "--model",
        models[1],
        "--task",
        "rte",
        "--in",
        "-",
        "--out",
        tmp_path / "out.jsonl",
        "--block",
        1,
    )
    command = [sys.executable, "-m", "mtkd.cli.main", "predict", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write("".join(json.dumps(row) + "\n" for row in PAIRS))
            process.stdin.flush()
            while not list(tmp_path.iterdir()):  # the temporary file
                assert process.poll() is None
                time.sleep(0.05)
            process.terminate()
            assert process.wait(60) == 143
        finally:
            process.kill()
    assert not list(tmp_path.iterdir())


def test_a_model_that_needs_torch_is_one_error_without_torch(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", PAIRS)
    done = without_torch(
        "predict", "--model", models[0], "--task", "rte", "--in", source, "--out", tmp_path / "o.csv"
    )
    assert done.returncode == 2 and done.stderr.startswith("error: this command needs the package 'torch'")
    rows = ("--data", "pocket", "--tasks", "rte")
    for words in (("evaluate", "--model", models[1]), ("refine", "--out", tmp_path / "run")):
        done = without_torch(*words, *rows)
        assert done.returncode == 2
        assert done.stderr.startswith("error: this command needs the package 'torch'")
        assert "`mtkd predict` runs exported models" in " ".join(done.stderr.split())


def test_a_head_predicts_a_task_with_other_labels(models: tuple[Path, Path], tmp_path: Path) -> None:
    task = tmp_path / "own.toml"
    task.write_text(
        'name = "own"\nkind = "classify"\nlabels = ["no", "yes"]\ncolumns = ["sentence1", "sentence2"]\n'
        'head = "mnli"\nmap = { entailment = "yes", neutral = "no", contradiction = "yes" }\n'
    )
    source = write_jsonl(tmp_path / "in.jsonl", PAIRS)
    given = mtkd.load(models[0])
    three = given.predict("mnli", [(row["sentence1"], row["sentence2"]) for row in PAIRS])
    yes = [1 - row["probabilities"]["neutral"] for row in three]
    assert 0 < sum(share > 0.5 for share in yes) < len(yes)
    for model in models:
        mtkd.predict(model, task, source, tmp_path / "out.jsonl")
        found = read(tmp_path / "out.jsonl")
        assert [row["probabilities"]["yes"] for row in found] == pytest.approx(yes, abs=1e-5)
        assert [row["prediction"] == "yes" for row in found] == [share > 0.5 for share in yes]
        labelled = [{**row, "label": "yes"} for row in PAIRS]
        scores = mtkd.evaluate(model, {"own": {"validation": labelled}}, task)
        assert scores["own"].primary == pytest.approx(np.mean([share > 0.5 for share in yes]))
        assert scores["own"].loss == pytest.approx(-np.log(yes).mean(), abs=1e-4)
    data = {"own": {"train": labelled, "validation": labelled}}
    for train in (
        lambda: mtkd.finetune(models[0], task=task, data=data, out=tmp_path / "run"),
        lambda: mtkd.export(models[0], tasks=task, out=tmp_path / "run"),
    ):
        with pytest.raises(UserError, match="the task 'own' has no head of its own"):
            train()
    assert not (tmp_path / "run").exists()
