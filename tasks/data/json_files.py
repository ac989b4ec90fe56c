"""Reading JSON lines, arrays of JSON objects, and files in the format of SQuAD's releases."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tasks.common.errors import UserError
from tasks.data.collected_rows import CollectedRows, answers_as_lists
from tasks.data.raw_table import RawTable, UnreadableLine, is_utf8_text
from tasks.data.text_lines import STANDARD, open_bytes, repeated_key, text_lines

_MAX_FIELDS = 1000  # of all rows of a JSON file, where fields may be missing
_MAX_JSON_BYTES = 1 << 28  # of a JSON file that is read as a whole
_JSON_FORMATS = "an array of objects, or the format of SQuAD's releases; one object per line is .jsonl"


def jsonl_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read one JSON object per line; a field that a line lacks is null.

    A table has a column for each field up to its last line, so later tables may have more columns.
    """
    collected = CollectedRows(path, size)
    names: dict[str, None] = {}  # those of `collected`, in order
    for number, line in enumerate(text_lines(path, collected.bad, "\n"), start=1):
        if not line.strip():
            continue
        try:
            record = from_json(line)
        except ValueError as error:
            reason = str(error).replace(" at line 1 column", " at column")
            if reason.startswith("EOF"):
                reason = "the line ends inside an object, a list or a text; each line must be one row"
            elif number == 1 and texts:
                reason += f"; expected: rows such as {json.dumps(dict.fromkeys(texts, '...'))}"
            if number == 1 and path == STANDARD:
                reason += "; for CSV, add `format='csv'`"
            collected.bad.append(UnreadableLine(number, f"not JSON: {reason}"))
            continue
        problem = _fields_problem(record, names, texts)
        if isinstance(record, list):
            problem = f"{problem}; each line must be one row (give a file with an array a name in .json)"
        if not problem and (name := repeated_key(line, record)):
            problem = f"the key {name!r} occurs twice"
        if problem:
            collected.bad.append(UnreadableLine(number, problem))
            continue
        if record.keys() - names.keys():
            names.update(dict.fromkeys(record))
            collected.names = list(names)
        if collected.add([record.get(name) for name in names], number):
            yield collected.table()
    yield from collected.rest()


def _fields_problem(record: Any, names: Collection[str], texts: Sequence[str]) -> str | None:
    """The problem of a row, given the fields of the rows before and the text columns; or None."""
    if isinstance(record, list):
        return "a JSON list in place of an object with fields"
    if not isinstance(record, dict) or not record:
        return "not a JSON object with fields"
    extra = [name for name in record if name not in names]
    if names and len(names) + len(extra) > _MAX_FIELDS:
        return f"the field {extra[0]!r} is one too many: the rows have more than {_MAX_FIELDS:,} fields"
    for name in texts:
        value = record.get(name)
        if value is not None and not is_utf8_text(value):
            return f"the field {name!r} is {json.dumps(value)[:40]}, not text"
    return None


def json_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read an array of JSON objects, or a file in the format of SQuAD's releases, as a whole.

    Such a file becomes one row per question, with the columns id, title, context, question and answers.
    """
    collected = CollectedRows(path, size)
    with open_bytes(path) as handle:
        content = handle.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise UserError(
            f"{path} has more than {_MAX_JSON_BYTES:,} bytes",
            expected="a smaller file, or one JSON object per line (.jsonl)",
        )
    try:
        records = from_json(content.decode(json.detect_encoding(content)))
        if isinstance(records, dict) and isinstance(records.get("data"), list):
            records = records["data"]
            if any(isinstance(record, dict) and "paragraphs" in record for record in records):
                records = list(_squad_rows(records))
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}", expected=_JSON_FORMATS) from error
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"a part of it lacks {error}" if isinstance(error, KeyError) else "a part has another form"
        raise UserError(
            f"{path} does not have the format of SQuAD: {lacks}", expected=_JSON_FORMATS
        ) from error
    if not isinstance(records, list):
        raise UserError(f"{path} does not hold a list of rows", expected=_JSON_FORMATS)
    names: dict[str, None] = {}
    for number, record in enumerate(records, start=1):
        if problem := _fields_problem(record, names, texts):
            raise UserError(f"{path}, row {number - 1}: {problem}", expected=_JSON_FORMATS)
        names.update(dict.fromkeys(record))
        collected.names = list(names)
        if collected.add([record.get(name) for name in names], number):
            yield replace(collected.table(), lines=None, first=number - (size or 0))
    for table in collected.rest():
        yield replace(table, lines=None, first=len(records) - table.table.num_rows)


def _squad_rows(articles: list[Any]) -> Iterator[dict[str, Any]]:
    """The questions of a file in the format of SQuAD 1.1 or 2.0."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers")
                yield {
                    "id": question["id"],
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": None if answers is None else answers_as_lists(answers),
                }
