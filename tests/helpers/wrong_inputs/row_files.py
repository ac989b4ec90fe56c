# ruff: noqa: E501
"""Wrong files of rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.commands import generate
from wrong_inputs.json_files import BIG, DEEP, DIGITS, SURROGATE
from wrong_inputs.tiny_inputs import ONE_STEP, TINY_MLM, Case, TinyInputs, write_file


def _line(**values: Any) -> str:
    return json.dumps(values) + "\n"


def _table(columns: dict[str, Any]) -> bytes:
    """A parquet file; "text" and "text2" both become columns named "text"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    names, arrays = list(columns), list(columns.values())
    pq.write_table(
        pa.table([pa.array(values) for values in arrays], names=[name.rstrip("2") for name in names]), sink
    )
    return bytes(sink.getvalue())


WHOLE = "".join(_line(text=f"row {n}", label="ab"[n % 2]) for n in range(20))
PACKED = gzip.compress(WHOLE.encode(), mtime=0)


# Files of rows with a text and a label: suffix, content, whether they must be rejected.
TABLES: dict[str, tuple[str, Any, bool]] = {
    "empty": (".jsonl", "", True),
    "NULs": (".jsonl", b"\x00" * 100, True),
    "deep": (".jsonl", WHOLE + "[" * DEEP + "\n", True),
    "deep field": (".jsonl", _line(text="a", label="a", more=1) + '{"text": "a", "label": "a", "more": ' + "[" * DEEP + "}\n", True),
    "digits": (".jsonl", WHOLE + f'{{"text": "a", "label": {DIGITS}}}\n', True),
    "digits more": (".jsonl", f'{{"text": "a", "label": "a", "more": {DIGITS}}}\n', True),
    "long int": (".jsonl", WHOLE + f'{{"text": "a", "label": {10**400}}}\n', True),
    "surrogate text": (".jsonl", WHOLE + f'{{"text": "{SURROGATE}", "label": "a"}}\n', True),
    "surrogate label": (".jsonl", WHOLE + f'{{"text": "a", "label": "{SURROGATE}"}}\n', True),
    "surrogate name": (".jsonl", f'{{"text": "a", "label": "a", "{SURROGATE}": 1}}\n', True),
    "surrogate more": (".jsonl", f'{{"text": "a", "label": "a", "more": "{SURROGATE}"}}\n', True),
    "ints": (".jsonl", _line(text=1, label="a") * 3, True),
    "mixed": (".jsonl", WHOLE + _line(text=[1], label="a"), True),
    "label list": (".jsonl", WHOLE + _line(text="a", label=[1]), True),
    "label table": (".jsonl", WHOLE + _line(text="a", label={"a": {}}), True),
    "label nan": (".jsonl", WHOLE + '{"text": "a", "label": NaN}\n', True),
    "label escape": (".jsonl", WHOLE + _line(text="a", label="\x1b[31mred"), True),
    "name escape": (".jsonl", WHOLE + _line(text="a", label="a", **{"\x1b[31m": 1}), False),
    "csv quotes": (".csv", 'text,label\n"a,b\n', True),
    "csv field": (".csv", "text,label\n" + "x" * 200_000 + ",a\n", False),
    "csv NUL": (".csv", "text,label\na\x00,a\n", False),
    "csv twice": (".csv", "text,text,label\na,b,a\n", True),
    "csv header": (".csv", "\n\n", True),
    "csv utf16": (".csv", "text,label\na,a\n".encode("utf-16")[:-1], False),
    "tsv empty": (".tsv", "", True),
    "parquet not": (".parquet", "x", True),
    "parquet cut": (".parquet", b"PAR1" + b"\x00" * 40 + b"PAR1", True),
    "parquet ints": (".parquet", lambda: _table({"text": [1, 2], "label": ["a", "b"]}), True),
    "parquet twice": (".parquet", lambda: _table({"text": ["a"], "text2": ["b"], "label": ["a"]}), True),
    "parquet label twice": (".parquet", lambda: _table({"text": ["a"], "label": ["b"], "label2": ["a"]}), True),
    "parquet null": (".parquet", lambda: _table({"text": [None], "label": ["a"]}), True),
    "parquet list": (".parquet", lambda: _table({"text": [["a"]], "label": ["a"]}), True),
    "parquet bytes": (".parquet", lambda: _table({"text": [b"\xff"], "label": ["a"]}), True),
    "parquet label struct": (".parquet", lambda: _table({"text": ["a"], "label": [{"a": 1}]}), True),
    "parquet label bytes": (".parquet", lambda: _table({"text": ["a"], "label": [b"\xff"]}), True),
    "parquet label inf": (".parquet", lambda: _table({"text": ["a"], "label": [float("inf")]}), True),
    "parquet empty": (".parquet", lambda: _table({}), True),
    "gz not": (".jsonl.gz", WHOLE, True),
    "gz cut": (".jsonl.gz", PACKED[:-12], True),
    "gz trailing": (".jsonl.gz", PACKED + b"xx", True),
    "gz damaged": (".jsonl.gz", PACKED[:20] + b"\x00\xff" * 20, True),
    "gz crc": (".jsonl.gz", PACKED[:-8] + b"\x00" * 8, True),
    "gz csv": (".csv.gz", b"", True),
}  # fmt: skip


def table_cases() -> Iterator[Case]:
    """Yield cases with wrong files of rows for `data check`, `refine`, `predict` and `init`."""

    def write(directory: Path, entry: tuple[Any, Any, bool]) -> Path:
        suffix, content, _ = entry
        return write_file(directory, f"in{suffix}", content() if callable(content) else content)

    def task(inputs: TinyInputs, directory: Path, file: str) -> Path:
        inputs.copy("rows", directory)
        text = (inputs.rows / "topics.toml").read_text().replace('"train.jsonl"', f'"{file}"')
        return write_file(directory, "rows/topics.toml", text)

    for name, entry in TABLES.items():
        must_fail = entry[2]

        def check(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            return ["data", "check", "--tasks", task(inputs, directory, str(write(directory, entry)))]

        def refine(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            words = ["--encoder", inputs.encoder, "--out", directory / "out", *ONE_STEP]
            return ["refine", "--tasks", task(inputs, directory, str(write(directory, entry))), *words]

        def unlabelled(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            return [
                "data",
                "check",
                "--tasks",
                inputs.rows / "topics.toml",
                "--unlabelled",
                f"topics={write(directory, entry)}",
            ]

        def predict(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            task = write_file(
                directory,
                "p.toml",
                'name = "p"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["a", "b"]\nhead = "sst2"\n',
            )
            return [
                "predict",
                "--model",
                inputs.teacher,
                "--task",
                task,
                "--in",
                write(directory, entry),
                "--out",
                directory / "out.jsonl",
            ]

        def init(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            return ["init", write(directory, entry), "--out", directory / "out"]

        def text(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            return generate(inputs.generator, write(directory, entry), directory / "out")

        def mlm(inputs: TinyInputs, directory: Path, entry=entry) -> list[Any]:
            file = write(directory, entry)
            return [
                "distill", "minilm-6", "--text", file, "--teacher", inputs.encoder, *TINY_MLM, "--out", directory / "out", "--steps", 1,
                "--set=student.max_length=8", "--batch", 2, "--eval-limit", 2,
            ]  # fmt: skip

        yield Case(f"data check {name}", check, must_fail)
        yield Case(f"data refine {name}", refine, must_fail)
        of_labels = "label" in name or name in ("ints", "parquet list")
        yield Case(f"unlabelled {name}", unlabelled, False)
        yield Case(f"predict {name}", predict, must_fail and not of_labels and "more" not in name)
        yield Case(f"init {name}", init, False)
        yield Case(f"qgen text {name}", text, False)
        yield Case(f"distill text {name}", mlm, False)
    for name, file in {
        "dir": ".",
        "missing": "none.jsonl",
        "long": "x" * 300 + ".jsonl",
        "gz": "train.jsonl.gz",
        "odd": "train.xyz",
    }.items():
        for command in ("check", "refine"):
            options = ["--encoder", "ENCODER", "--out", "OUT", *ONE_STEP] if command == "refine" else []

            def make(
                inputs: TinyInputs, directory: Path, file=file, command=command, options=options
            ) -> list[Any]:
                path = task(inputs, directory, file)
                if file == "train.xyz":
                    write_file(directory, "rows/train.xyz", WHOLE)
                named = {"ENCODER": inputs.encoder, "OUT": directory / "out"}
                return [
                    *(["data", "check"] if command == "check" else ["refine"]),
                    "--tasks",
                    path,
                    *(named.get(word, word) for word in options),
                ]

            yield Case(f"data {command} file {name}", make)


# Values of the column with the answers.
SPANS = {
    "start text": {"text": ["Anna"], "answer_start": ["0"]},
    "start float": {"text": ["Anna"], "answer_start": [0.5]},
    "start null": {"text": ["Anna"], "answer_start": [None]},
    "start huge": {"text": ["Anna"], "answer_start": [BIG]},
    "text int": {"text": [1], "answer_start": [0]},
    "text list": {"text": [["Anna"]], "answer_start": [0]},
    "scalars": {"text": "Anna", "answer_start": 0},
    "lengths": {"text": ["Anna", "a"], "answer_start": [0]},
    "nested": {"text": [[["Anna"]]], "answer_start": [[0]]},
    "null": {"text": None, "answer_start": None},
    "empty": {},
    "list": [],
    "text": "Anna",
    "tables": {"text": [{}], "answer_start": [{}]},
}


def span_cases() -> Iterator[Case]:
    """Yield cases with wrong answers and ids in files of rows of a `span` task, for `data check`."""
    for name, answers in SPANS.items():
        for identity in ("1", {"a": 1}, [1], None):
            for suffix in (".jsonl", ".parquet"):

                def make(
                    inputs: TinyInputs, directory: Path, answers=answers, identity=identity, suffix=suffix
                ) -> list[Any]:
                    row = {
                        "id": identity,
                        "question": "Who?",
                        "context": "Anna was born in Rome.",
                        "answers": answers,
                    }
                    rows = [row] * 2 if identity == "1" else [row]
                    if suffix == ".parquet":
                        try:
                            content: Any = _table({key: [values[key] for values in rows] for key in row})
                        except Exception:
                            content = "not parquet"
                    else:
                        content = "".join(_line(**values) for values in rows)
                    files = "".join(f'{split} = "{split}{suffix}"\n' for split in ("train", "validation"))
                    for split in ("train", "validation"):
                        write_file(directory, f"{split}{suffix}", content)
                    text = (
                        'name = "qa"\nkind = "span"\ncolumns = ["question", "context"]\nlabel = "answers"\n'
                    )
                    return [
                        "data",
                        "check",
                        "--tasks",
                        write_file(directory, "qa.toml", f"{text}[files]\n{files}"),
                    ]

                yield Case(f"span{suffix} {name} id {identity}", make)
