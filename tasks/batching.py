"""Turn encoded rows into padded batches, with no per-row Python code."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from tasks.errors import UserError
from tasks.ragged import RaggedArray
from tasks.reader import Reader
from tasks.rows import Rows, Windows, has_label
from tasks.span_windows import encode_windows
from tasks.tokeniser import Tokeniser


@dataclass(frozen=True, eq=False)
class Tokens:
    """Padded token sequences.

    Attributes:
        ids: (B, L) int64.
        mask: (B, L) bool, True for real tokens.
        token_type_ids: (B, L) int64; 0 for padding.
        ends: (B, L) bool, True for special tokens that follow a text ([SEP]); None if texts are read
            separately.
        second: (B, L) bool, True for the second text and its special tokens; None unless two texts are side
            by side.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    token_type_ids: torch.Tensor
    ends: torch.Tensor | None = None
    second: torch.Tensor | None = None

    @property
    def text_masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two (B, L) bool tensors: the tokens of the first text and those of the second, of joined texts."""
        assert self.ends is not None, "only for texts that are joined"
        inside = self.mask & ~self.ends
        inside[:, 0] = False  # [CLS]
        before = self.ends.cumsum(1) == 0
        return inside & before, inside & ~before

    def to(self, device: torch.device | str) -> Tokens:
        """Move to a device."""
        optional = (None if x is None else x.to(device) for x in (self.ends, self.second))
        return Tokens(self.ids.to(device), self.mask.to(device), self.token_type_ids.to(device), *optional)


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The inputs of one model: either `joined`, one sequence per row, or `texts`, one sequence per text.

    Texts that are side by side are one sequence per row, too.
    """

    joined: Tokens | None = None
    texts: tuple[Tokens, ...] | None = None

    def to(self, device: torch.device | str) -> ModelInputs:
        """Move to a device."""
        return ModelInputs(
            None if self.joined is None else self.joined.to(device),
            None if self.texts is None else tuple(tokens.to(device) for tokens in self.texts),
        )


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
        inputs = self.inputs.to(device)
        teacher = inputs if self.teacher is self.inputs else self.teacher and self.teacher.to(device)
        groups = None if self.groups is None else self.groups.to(device)
        return Batch(self.task, self.indices, self.labels.to(device), groups, inputs, teacher)


@dataclass(frozen=True, eq=False)
class Encoded:
    """n rows of one task as token ids, neither truncated nor framed by special tokens.

    Attributes:
        task: the task's name.
        uids: n unique names.
        labels: (n,) or (n, K) float64; for windows of `span` rows (n, 2), see
            `tasks.span_windows.SpanTokens`. NaN = unlabelled.
        groups: (n,) int64, or None.
        texts: for each text column (one or two), n rows of token ids.
        teacher: the same as the teacher's token ids; None if both use the same tokeniser.
        windows: for `span` rows, where they were cut from; None after `take`.
        char_offsets: for `span` rows, the first character of each context token and the one after its last.
    """

    task: str
    uids: pa.StringArray
    labels: np.ndarray
    groups: np.ndarray | None
    texts: tuple[RaggedArray, ...]
    teacher: tuple[RaggedArray, ...] | None = None
    windows: Windows | None = None
    char_offsets: tuple[RaggedArray, RaggedArray] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> np.ndarray:
        """(n,) bool, True for rows that have a label."""
        return has_label(self.labels)

    @staticmethod
    def encode(rows: Rows, tokeniser: Tokeniser, teacher: Tokeniser | None = None) -> Encoded:
        """Tokenise rows; a second time only if the teacher uses another tokeniser.

        Rows of `span` tasks must come from `Reader.rows`; their teacher reads the same tokens as the student.
        """
        if rows.windows is not None:
            span = encode_windows(rows, tokeniser)
            offsets = (span.starts, span.ends)
            return Encoded(rows.task, rows.uids, span.labels, None, span.texts, None, rows.windows, offsets)
        texts = tuple(tokeniser.token_ids(column) for column in rows.texts)
        differs = teacher is not None and teacher.digest != tokeniser.digest
        teacher_texts = tuple(map(teacher.token_ids, rows.texts)) if teacher and differs else None
        return Encoded(rows.task, rows.uids, rows.labels, rows.groups, texts, teacher_texts)

    def take(self, indices: np.ndarray) -> Encoded:
        """The rows at `indices`, in that order."""
        return Encoded(
            self.task,
            self.uids.take(pa.array(indices)),
            self.labels[indices],
            None if self.groups is None else self.groups[indices],
            tuple(text.take(indices) for text in self.texts),
            None if self.teacher is None else tuple(text.take(indices) for text in self.teacher),
        )


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

    def __call__(self, encoded: Encoded, indices: np.ndarray) -> Batch:
        """Collate the rows at `indices` (B,), with B at least 1."""
        inputs = self._inputs(self.reader, encoded.texts, indices)
        teacher = inputs if self._same else None
        if self._teacher:
            shared = self._teacher.tokeniser.digest == self.reader.tokeniser.digest
            texts = encoded.texts if shared else encoded.teacher
            if texts is None:
                raise ValueError("the rows were encoded without the teacher's tokeniser")
            teacher = self._inputs(self._teacher, texts, indices)
        labels = torch.from_numpy(encoded.labels[indices].astype(np.float32))
        groups = None if encoded.groups is None else torch.from_numpy(encoded.groups[indices])
        return Batch(encoded.task, indices, labels, groups, inputs, teacher)

    def _inputs(self, reader: Reader, texts: tuple[RaggedArray, ...], indices: np.ndarray) -> ModelInputs:
        begins = [text.offsets[indices] for text in texts]
        sizes = tuple(text.offsets[indices + 1] - begin for text, begin in zip(texts, begins, strict=True))
        kept = reader.kept(sizes)
        spans = [
            _Span(text.values, begin, np.minimum(size, keep))
            for text, begin, size, keep in zip(texts, begins, sizes, kept, strict=True)
        ]
        if reader.input_format == "separate":
            return ModelInputs(texts=tuple(_separate(reader.tokeniser, span, self._pad_to) for span in spans))
        return ModelInputs(joined=_join(reader, spans, self._pad_to))


@dataclass(frozen=True, eq=False)
class _Span:
    """B slices of `values`: slice i begins at begins[i] and has lengths[i] tokens."""

    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray

    def write(self, flat: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Copy slice i to flat[starts[i]:] and return all positions that were written."""
        firsts = np.cumsum(self.lengths) - self.lengths
        steps = np.arange(firsts[-1] + self.lengths[-1])
        where = steps + np.repeat(starts - firsts, self.lengths)
        flat[where] = self.values[steps + np.repeat(self.begins - firsts, self.lengths)]
        return where


def _separate(tokeniser: Tokeniser, span: _Span, pad_to: int | None) -> Tokens:
    """(B, L) the texts without special tokens; an empty text becomes one unknown token."""
    lengths = np.maximum(span.lengths, 1)
    ids, token_type_ids = _padded_arrays(len(lengths), pad_to or int(lengths.max()), tokeniser.pad_id)
    ids[span.lengths == 0, 0] = tokeniser.unknown_id
    span.write(ids.reshape(-1), np.arange(len(lengths)) * ids.shape[1])
    return _tokens(ids, token_type_ids, lengths)


def _join(reader: Reader, spans: list[_Span], pad_to: int | None) -> Tokens:
    """(B, L) the texts of each row in one sequence with special tokens, as the reader lays them out."""
    tokeniser, layout = reader.tokeniser, reader.layout(len(spans))
    lengths = np.sum([span.lengths for span in spans], axis=0) + layout.n_specials
    ids, token_type_ids = _padded_arrays(len(lengths), pad_to or int(lengths.max()), tokeniser.pad_id)
    ends = np.zeros(ids.shape, bool)
    flat_ids, flat_type_ids, flat_ends = ids.reshape(-1), token_type_ids.reshape(-1), ends.reshape(-1)
    starts = np.arange(len(lengths)) * ids.shape[1]
    for slot, run in enumerate(layout.specials):
        for token, type_id in zip(run, layout.special_type_ids[slot], strict=True):
            flat_ids[starts] = token
            flat_ends[starts] = slot > 0
            if type_id:
                flat_type_ids[starts] = type_id
            starts = starts + 1
        if slot < len(spans):
            where = spans[slot].write(flat_ids, starts)
            if layout.text_type_ids[slot]:
                flat_type_ids[where] = layout.text_type_ids[slot]
            starts = starts + spans[slot].lengths
    tokens = _tokens(ids, token_type_ids, lengths, torch.from_numpy(ends))
    if len(spans) == 1 or reader.input_format == "joined":
        return tokens
    first = torch.from_numpy(spans[0].lengths + tokeniser.layout(1).n_specials)
    return replace(tokens, second=tokens.mask & (torch.arange(ids.shape[1]) >= first[:, None]))


def _padded_arrays(n_rows: int, width: int, pad_id: int) -> np.ndarray:
    """(2, B, L) int64: token ids filled with padding, and token type ids filled with 0."""
    grids = np.zeros((2, n_rows, width), np.int64)
    grids[0] = pad_id
    return grids


def _tokens(
    ids: np.ndarray, token_type_ids: np.ndarray, lengths: np.ndarray, ends: torch.Tensor | None = None
) -> Tokens:
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(token_type_ids), ends)
