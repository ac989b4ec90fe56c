"""Turn encoded rows into padded batches, with no per-row Python code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tasks.common.errors import UserError
from tasks.common.mapped import release_pages
from tasks.tokens.encoding import Encoded, TokenArrays, pad_rows
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.reader import Reader

_RELEASE = 512  # rows after which the pages of memory-mapped arrays are released


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Move to a device; to a GPU from page-locked memory, so that the CPU does not wait for the GPU."""
    if torch.device(device).type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    pinned = tensor if tensor.is_pinned() else tensor.contiguous().pin_memory()
    return pinned.to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Padded token sequences.

    Attributes:
        ids: (B, L) int64.
        mask: (B, L) bool, True for real tokens.
        token_type_ids: (B, L) int64; 0 for padding.
        ends: (B, L) bool, True for special tokens that follow a text and belong to it ([SEP], but not the
            [CLS] of a second text); None if texts are read separately.
        second: (B, L) bool, True for the second text and its special tokens; None unless two texts are side
            by side.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    token_type_ids: torch.Tensor
    ends: torch.Tensor | None = None
    second: torch.Tensor | None = None

    @staticmethod
    def of(arrays: TokenArrays) -> Tokens:
        """The same sequences as tensors, which share the memory of the arrays."""
        return Tokens(*(None if part is None else torch.from_numpy(part) for part in vars(arrays).values()))  # type: ignore[arg-type]

    @property
    def text_numbers(self) -> torch.Tensor | None:
        """(B, L) int64, the number of each token's text, 1 or 2, and 0 for padding; None for one text."""
        return None if self.second is None else self.mask.long() + self.second

    @property
    def text_masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two (B, L) bool tensors: the tokens of the first text and those of the second, of joined texts."""
        assert self.ends is not None, "only for texts that are joined"
        inside = self.mask & ~self.ends
        inside[:, 0] = False  # [CLS]
        before = self.ends.cumsum(1) == 0
        return inside & before, inside & ~before

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tokens:
        """Apply a function to every tensor."""
        return Tokens(*(None if part is None else change(part) for part in vars(self).values()))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The inputs of one model: either `joined`, one sequence per row, or `texts`, one sequence per text.

    Texts that are side by side are also one sequence per row.

    Attributes:
        needed: (B, n) int64, the positions of the tokens whose hidden states of the last layer are needed if
            any are; None = all. Encoders may compute them only for these tokens (`EncoderOutput.positions`).
    """

    joined: Tokens | None = None
    texts: tuple[Tokens, ...] | None = None
    needed: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ModelInputs:
        """Apply a function to every tensor."""
        return ModelInputs(
            None if self.joined is None else self.joined.map(change),
            None if self.texts is None else tuple(tokens.map(change) for tokens in self.texts),
            None if self.needed is None else change(self.needed),
        )

    def to(self, device: torch.device | str) -> ModelInputs:
        """Move to a device."""
        return self.map(lambda tensor: to_device(tensor, device))


@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of one task.

    Attributes:
        task: the task's name.
        indices: (B,) positions of the rows in the encoded split.
        labels: (B,) or (B, K) float32, in the form that the task type defines; for `span` tasks (B, 2), the
            first and last token of the answer (0 = no answer). NaN = unlabelled.
        groups: (B,) int64 ids of the candidate groups, or None.
        inputs: inputs of the trained model.
        teacher: inputs of the teacher. The same object as `inputs` if both models read the same; None if
            there is no teacher.
    """

    task: str
    indices: np.ndarray
    labels: torch.Tensor
    groups: torch.Tensor | None
    inputs: ModelInputs
    teacher: ModelInputs | None

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        """Move the batch to a device; shared inputs stay shared."""
        if self.labels.device == torch.device(device):
            return self
        return self._map(lambda tensor: to_device(tensor, device))

    def pin_memory(self) -> Batch:
        """Move the batch to page-locked memory, from which it is copied to a GPU in the background."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        inputs = self.inputs.map(change)
        teacher = inputs if self.teacher is self.inputs else self.teacher and self.teacher.map(change)
        groups = None if self.groups is None else change(self.groups)
        return Batch(self.task, self.indices, change(self.labels), groups, inputs, teacher)


class Collator:
    """Collates rows into a padded batch.

    Args:
        reader: the reader of the trained model.
        teacher: the reader of its teacher; None if there is no teacher.
        pad_to: pad every sequence to this length; by default to the longest one of the batch.

    Raises:
        UserError: `pad_to` is less than the `max_length` of a reader.
    """

    def __init__(self, reader: Reader, teacher: Reader | None = None, pad_to: int | None = None):
        longest = max(model.max_length for model in (reader, teacher) if model)
        if pad_to is not None and pad_to < longest:
            raise UserError(
                f"cannot pad to {pad_to} tokens: rows may have up to {longest}", hint="lower max_length"
            )
        self.reader, self._pad_to = reader, pad_to
        self._same = teacher is not None and reader.reads_like(teacher)
        self._teacher = None if self._same else teacher
        self._rows = 0

    def __call__(self, encoded: Encoded, indices: np.ndarray) -> Batch:
        """Collate the rows at `indices` (B,), with B at least 1."""
        self._rows += len(indices)
        if self._rows >= _RELEASE:
            self._rows = 0
            release_pages()
        inputs = self._inputs(self.reader.for_task(encoded.task), encoded.texts, indices)
        teacher = inputs if self._same else None
        if self._teacher:
            shared = self._teacher.tokeniser.digest == self.reader.tokeniser.digest
            texts = encoded.texts if shared else encoded.teacher
            if texts is None:
                raise ValueError("the rows were encoded without the teacher's tokeniser")
            teacher = self._inputs(self._teacher.for_task(encoded.task), texts, indices)
        labels = torch.from_numpy(encoded.labels[indices].astype(np.float32))
        groups = None if encoded.groups is None else torch.from_numpy(encoded.groups[indices])
        return Batch(encoded.task, indices, labels, groups, inputs, teacher)

    def _inputs(self, reader: Reader, texts: tuple[RaggedArray, ...], indices: np.ndarray) -> ModelInputs:
        tokens = tuple(map(Tokens.of, pad_rows(reader, texts, indices, self._pad_to)))
        return (
            ModelInputs(texts=tokens) if reader.input_format == "separate" else ModelInputs(joined=tokens[0])
        )
