"""The answers of an endpoint on disk, so that nothing is paid for twice after an interruption."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from augment.questions.endpoint.client import Completion
from tasks.common.files import disk_errors
from tasks.common.records import CHECK, Count, Record, short_digest

_FLUSHED = 32  # answers, after which they are flushed to disk


@dataclass(frozen=True)
class _Line(Record):
    question: str
    text: str
    input_tokens: Count
    output_tokens: Count
    check: str  # a digest of the other values


_LINE = TypeAdapter(_Line)


class AnswerLog:
    """A file of JSON lines, one per answered request, each with a digest. Damaged lines are ignored.

    Args:
        path: the file; it is created by the first answer.
        ignore: an existing file, which will be removed.

    Attributes:
        answers: the answers that were in the file, by the names of their requests.
    """

    def __init__(self, path: Path, *, ignore: bool = False):
        self.path = path
        self.answers = {} if ignore or not path.is_file() else dict(_read(path))
        self._lock = threading.Lock()
        self._file: Any = None
        self._unflushed = 0

    def add(self, name: str, answer: Completion) -> None:
        """Append an answer; it survives a crash of this process, and once flushed one of the machine."""
        values = {"question": name, **dataclasses.asdict(answer)}
        line = json.dumps(values | {CHECK: short_digest(values)}) + "\n"
        with self._lock, disk_errors(self.path):
            if self._file is None:
                self._file = open(self.path, "ab+")  # noqa: SIM115 (see `close`)
                if self._file.tell():
                    self._file.seek(-1, os.SEEK_END)
                    line = line if self._file.read() == b"\n" else "\n" + line  # after half a line
            self._file.write(line.encode())
            self._file.flush()
            self._unflushed += 1
            if self._unflushed == _FLUSHED:
                self._sync()

    def close(self) -> None:
        """Flush to disk and close; a later answer opens the file again."""
        with self._lock, disk_errors(self.path):
            if self._file is not None:
                self._sync()
                self._file.close()
                self._file = None

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._unflushed = 0


def _read(path: Path) -> Iterator[tuple[str, Completion]]:
    with open(path, "rb") as lines:
        for line in lines:
            try:
                read = _LINE.validate_json(line, strict=True)
            except ValidationError:
                continue
            values = dataclasses.asdict(read)
            if values.pop(CHECK) == short_digest(values):
                yield read.question, Completion(read.text, read.input_tokens, read.output_tokens)
