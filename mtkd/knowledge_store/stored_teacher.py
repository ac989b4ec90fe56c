"""Teacher outputs read from a store, so that no teacher model is needed in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtkd.knowledge_store.contents import OF_TOKENS, Field, LogitsLayout, activation_bits
from mtkd.knowledge_store.row_index import read_rows, row_digests
from mtkd.knowledge_store.shard_files import ShardReader
from mtkd.knowledge_store.store_manifest import StoreManifest
from mtkd.models.encoders.text_vectors import pool_text
from mtkd.outputs import PER_ROW, ModelOutput, OutputSpec, Selected
from mtkd.teachers.hidden_selection import attention_scores, narrow_selection, static_activations
from tasks.common.errors import UserError
from tasks.data.loading import digest_rows
from tasks.data.rows import Rows
from tasks.task import Task
from tasks.tokens.batching import Batch
from tasks.tokens.encoding import PADDED


class StoredTeacher:
    """A teacher source that reads from a store.

    Args:
        need: the outputs to read, all of which the store must offer.
        positions: task -> (n,) position of each training row in the store (see `find_stored_rows`).

    Attributes:
        bytes: size of the whole store.
    """

    def __init__(
        self, directory: Path, manifest: StoreManifest, need: OutputSpec, positions: Mapping[str, np.ndarray]
    ):
        self.offers, self.bytes = manifest.contents.offers, manifest.bytes
        self._contents = manifest.contents
        self._need = need
        self._positions = positions
        self._reader = ShardReader(directory, manifest)
        self._fields: dict[str, list[Field]] = {
            task.name: self._needed_fields(LogitsLayout(task.n_outputs, task.per))
            for task in manifest.tasks
            if task.name in positions
        }

    def _needed_fields(self, outputs: LogitsLayout) -> list[Field]:
        """The fields required for `need`."""
        need, contents = self._need, self._contents
        names = {"logits"} if need.logits else set()
        names |= {"pooled"} if need.pooled else set()
        names |= {kind for kind in OF_TOKENS if getattr(need, kind)}
        names |= {"query", "key"} if need.scores else set()
        for kind in PER_ROW:
            stored = getattr(contents.need, kind)
            names |= {kind if layer in stored else "hidden" for layer in getattr(need, kind)}
        of_tokens = bool(names & set(OF_TOKENS)) or (need.logits and outputs.per == "token")
        names |= {"tokens"} if of_tokens else set()
        names |= {"kept"} if need.selected else set()

        def is_needed(name: str) -> bool:
            is_selection = name.startswith("selected.")
            return bool(need.selected) if is_selection else name.removesuffix(".scale") in names

        return [field for field in contents.fields(outputs) if is_needed(field.name)]

    def read(self, task: str, indices: np.ndarray) -> dict[str, Tensor]:
        """Read the stored entries of some training rows without decoding them (see `ShardReader.read`)."""
        return self._reader.read(task, self._positions[task][indices], self._fields[task])

    def read_ahead(self, task: str, indices: np.ndarray) -> None:
        """Start reading some training rows from disk in the background."""
        self._reader.read_ahead(task, self._positions[task][indices])

    def outputs(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """Read the stored outputs for the rows of a batch."""
        stored = self.read(task.name, batch.indices)
        need, contents = need or self._need, self._contents
        by_kind: dict[str, dict[int, Tensor]] = {}
        for kind in OF_TOKENS:
            if kind in stored:
                vectors = _decode(stored, kind)
                by_kind[kind] = {layer: vectors[:, :, i] for i, layer in enumerate(contents.layers(kind))}
        hidden = by_kind.get("hidden", {})
        heads = contents.shape.heads
        scores = {
            n: attention_scores(by_kind["query"][n], by_kind["key"][n], heads) for n in sorted(need.scores)
        }
        logits = stored.get("logits")
        if task.type.predicts_spans and logits is not None:
            real = torch.arange(logits.shape[1]) < stored["tokens"][:, None]
            logits = logits.masked_fill(~real.unsqueeze(-1), PADDED).transpose(1, 2)
        tokens = batch.inputs.joined
        by_layer: dict[str, Any] = {
            kind: self._row_vectors(kind, sorted(getattr(need, kind)), stored, hidden) for kind in PER_ROW
        }
        for kind, tensors in by_kind.items():
            by_layer[kind] = {layer: tensors[layer] for layer in sorted(getattr(need, kind))}
        outputs = ModelOutput(
            logits=logits,
            pooled=_decode(stored, "pooled") if need.pooled else None,
            mask=tokens.mask if tokens else None,
            text_numbers=tokens.text_numbers if tokens else None,
            scores=scores,
            selected=self._selected(stored),
            **by_layer,
        )
        return outputs.to(batch.labels.device)

    def _row_vectors(
        self, kind: str, layers: Sequence[int], stored: Mapping[str, Tensor], hidden: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """One vector per row of some layers, as stored, or computed from stored hidden states."""
        vectors, kept = {}, self._contents.layers(kind)
        for layer in layers:
            if layer in kept:
                vectors[layer] = _decode(stored, kind)[:, kept.index(layer)]
            else:
                states = hidden[layer]
                mask = torch.arange(states.shape[1]) < stored["tokens"][:, None]
                vectors[layer] = states[:, 0] if kind == "cls" else pool_text(states, mask, "mean")
        return vectors

    def _selected(self, stored: Mapping[str, Tensor]) -> dict[int, Selected]:
        requested, kept_selection = self._need.selection, self._contents.need.selection
        if requested is None or kept_selection is None:
            return {}
        width = self._contents.shape.hidden_size
        positions = stored["selected.positions"].long()
        vectors = _decode(stored, "selected.values")
        valid = torch.arange(positions.shape[1]) < stored["kept"][:, None]
        by_layer = {}
        for number, layer in enumerate(self._contents.layers("selected")):
            if layer not in self._need.selected:
                continue
            values = vectors[:, :, number]
            if self._contents.dynamic:
                activations = activation_bits(stored["selected.activations"][:, :, number], width)
            else:
                activations = static_activations(width, kept_selection).expand(*values.shape[:-1], width)
            dense = torch.zeros(activations.shape).masked_scatter_(activations, values)
            activations = activations & valid.unsqueeze(-1)
            everything = Selected(
                positions[:, :, number].masked_fill(~valid, 0),
                valid,
                dense.masked_fill(~activations, 0.0),
                activations,
            )
            by_layer[layer] = narrow_selection(everything, kept_selection, requested)
        return by_layer


def _decode(stored: Mapping[str, Tensor], name: str) -> Tensor:
    values = stored[name].float()
    scale = stored.get(f"{name}.scale")
    return values if scale is None else values * scale.unsqueeze(-1)


def find_stored_rows(directory: Path, manifest: StoreManifest, rows: Rows) -> np.ndarray:
    """The (n,) int64 positions of training rows in the store.

    Raises:
        UserError: the store does not have this task or some of these rows.
    """
    entry = manifest.task(rows.task)
    table = read_rows(directory, rows.task, entry.rows)
    order = table["row"].to_numpy()
    if digest_rows(rows) == entry.digest:
        positions = np.empty(len(order), np.int64)
        positions[order] = np.arange(len(order))
        return positions
    uids = table["uid"].to_pylist()
    position_of = dict(zip(uids, range(len(uids)), strict=True))
    positions = np.array([position_of.get(uid, -1) for uid in rows.uids.to_pylist()], np.int64)
    missing = positions < 0
    missing[~missing] = table["digest"].to_numpy()[positions[~missing]] != row_digests(rows)[~missing]
    if missing.any():
        first = rows.uids[int(np.flatnonzero(missing)[0])].as_py()
        raise UserError(
            f"the store {directory} was built from other {rows.task} rows: it does not contain "
            f"{int(missing.sum()):,} of these {len(rows):,} rows; the first missing row is {first} "
            f"(digest of these rows {digest_rows(rows)[:12]}, of the rows in the store {entry.digest[:12]})",
            hint="use the `data`, `limit` and `corpus` that the store was built with (see "
            "`mtkd.store_info`), or build a store from these rows",
        )
    return positions
