"""The rows of one split of one task, held by column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """Rows of one task, by column; every column has the same length n.

    Attributes:
        task: the task's name.
        split: where they come from ("train", "validation_matched", "corpus", ...).
        uids: n unique names, "task/split/number" (masked copies: "…#copy").
        texts: one string array a text column (one or two).
        labels: (n,) float64; a class id, or a score; NaN = unlabelled.
        groups: (n,) int64 ids of the candidate groups (`rank` tasks), or None.
    """

    task: str
    split: str
    uids: pa.StringArray
    texts: tuple[pa.StringArray, ...]
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def labelled(self) -> bool:
        """True if every row has a label."""
        return not bool(np.isnan(self.labels).any())

    def take(self, indices: np.ndarray) -> Rows:
        """The rows at `indices`, in that order."""
        where = pa.array(indices)
        return Rows(
            self.task,
            self.split,
            self.uids.take(where),
            tuple(text.take(where) for text in self.texts),
            self.labels[indices],
            None if self.groups is None else self.groups[indices],
        )


def concat(parts: list[Rows]) -> Rows:
    """Join rows of one task; the split name is the first part's. Groups are kept only if all have them."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    groups = [part.groups for part in parts if part.groups is not None]
    return Rows(
        first.task,
        first.split,
        pa.concat_arrays([part.uids for part in parts]),
        tuple(
            pa.concat_arrays(list(columns)) for columns in zip(*(part.texts for part in parts), strict=True)
        ),
        np.concatenate([part.labels for part in parts]),
        np.concatenate(groups) if len(groups) == len(parts) else None,
    )
