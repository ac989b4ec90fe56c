"""An augmenter of another package, which tests install."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from augment.augmenter import Augmenter, Copies, copies_table
from tasks.data.rows import Rows


@dataclass(frozen=True)
class Reverse(Augmenter):
    """Makes copies with the words in reverse order and a number appended."""

    start: int
    mark: str = "#"

    name = "reverse"
    description = "Words in reverse order."

    @property
    def settings(self) -> dict[str, float | int | str]:
        return {"start": self.start, "mark": self.mark}

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        made = [
            pa.array(
                [
                    f"{' '.join(reversed(text.split()))} {self.mark}{self.start + number}"
                    for text in column.to_pylist()
                    for number in range(copies)
                ]
            )
            for column in rows.texts
        ]
        pair = made[1] if len(made) > 1 else pa.nulls(len(made[0]), pa.string())
        yield Copies(copies_table(rows, copies, self.name, made[0], pair), 0, 0, 0)
