"""The teacher as a store has it: a source of signals that needs no teacher in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from mtkd.outputs import ModelOutput, OutputSpec, Selected
from mtkd.store.contents import OF_TOKENS, Field, Outputs, unit_bits
from mtkd.store.row_index import ROWS, row_digests
from mtkd.store.shard_files import ShardReader
from mtkd.store.store_manifest import StoreManifest
from mtkd.teachers.hidden_selection import narrow, scores_of, static_units
from tasks.batching import Batch
from tasks.errors import UserError
from tasks.heads import PADDED
from tasks.rows import Rows
from tasks.sources import digest_rows
from tasks.task import Task


class StoredTeacher:
    """Signals out of a store.

    Args:
        need: what is asked of it, which the store covers.
        places: task -> (n,) where each training row lies in the store's order (`find_stored_rows`).

    Attributes:
        bytes: of the whole store.
    """

    def __init__(
        self, directory: Path, manifest: StoreManifest, need: OutputSpec, places: Mapping[str, np.ndarray]
    ):
        self.offers, self.bytes = manifest.contents.offers, manifest.bytes
        self._contents, self._need, self._places = manifest.contents, need, places
        self._reader = ShardReader(directory, manifest)
        wanted = {
            task.name: self._wanted(Outputs(task.n_outputs, task.per))
            for task in manifest.tasks
            if task.name in places
        }
        self._fields: dict[str, list[Field]] = wanted

    def _wanted(self, outputs: Outputs) -> list[Field]:
        """The fields that the need is made of."""
        need, contents = self._need, self._contents
        names = {"logits"} if need.logits else set()
        names |= {"pooled"} if need.pooled else set()
        names |= {kind for kind in OF_TOKENS if getattr(need, kind)}
        names |= {"query", "key"} if need.scores else set()
        for layer in need.cls:
            names.add("cls" if layer in contents.need.cls else "hidden")
        of_tokens = bool(names & set(OF_TOKENS)) or (need.logits and outputs.per == "token")
        names |= {"tokens"} if of_tokens else set()
        names |= {"kept"} if need.selected else set()

        def wanted(name: str) -> bool:
            return name.removesuffix(".scale") in names or (
                bool(need.selected) and name.startswith("selected.")
            )

        return [field for field in contents.fields(outputs) if wanted(field.name)]

    def read(self, task: str, indices: np.ndarray) -> dict[str, Tensor]:
        """The stored entries of some training rows, as they lie on disk (`ShardReader.read`)."""
        return self._reader.read(task, self._places[task][indices], self._fields[task])

    def read_ahead(self, task: str, indices: np.ndarray) -> None:
        """Have some training rows read from the disk in the background."""
        self._reader.read_ahead(task, self._places[task][indices])

    def signal(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """The stored knowledge of the batch's rows."""
        stored = self.read(task.name, batch.indices)
        need, contents = need or self._need, self._contents
        found: dict[str, dict[int, Tensor]] = {}
        for kind in OF_TOKENS:
            if kind in stored:
                vectors = _decode(stored, kind)
                found[kind] = {layer: vectors[:, :, i] for i, layer in enumerate(contents.layers(kind))}
        states = found.get("hidden", {})
        cls = {layer: hidden[:, 0] for layer, hidden in states.items()}
        if "cls" in stored:
            vectors = _decode(stored, "cls")
            cls |= {layer: vectors[:, i] for i, layer in enumerate(contents.layers("cls"))}
        heads = contents.shape.heads
        scores = {n: scores_of(found["query"][n], found["key"][n], heads) for n in sorted(need.scores)}
        logits = stored.get("logits")
        if task.type.predicts_spans and logits is not None:
            real = torch.arange(logits.shape[1]) < stored["tokens"][:, None]
            logits = logits.masked_fill(~real.unsqueeze(-1), PADDED).transpose(1, 2)
        signal = ModelOutput(
            logits=logits,
            pooled=_decode(stored, "pooled") if need.pooled else None,
            mask=batch.inputs.joined.mask if batch.inputs.joined else None,
            cls={layer: cls[layer] for layer in sorted(need.cls)},
            scores=scores,
            selected=self._selected(stored),
            **{kind: {n: found[kind][n] for n in sorted(getattr(need, kind))} for kind in found},  # type: ignore[arg-type]
        )
        return signal.to(batch.labels.device)

    def _selected(self, stored: Mapping[str, Tensor]) -> dict[int, Selected]:
        wanted, kept = self._need.selection, self._contents.need.selection
        if wanted is None or kept is None:
            return {}
        width = self._contents.shape.width
        positions, vectors = stored["selected.positions"].long(), _decode(stored, "selected.values")
        valid = torch.arange(positions.shape[1]) < stored["kept"][:, None]
        found = {}
        for number, layer in enumerate(self._contents.layers("selected")):
            if layer not in self._need.selected:
                continue
            values = vectors[:, :, number]
            if self._contents.dynamic:
                units = unit_bits(stored["selected.units"][:, :, number], width)
            else:
                units = static_units(width, kept).expand(*values.shape[:-1], width)
            dense = torch.zeros(units.shape).masked_scatter_(units, values)
            units = units & valid.unsqueeze(-1)
            whole = Selected(
                positions[:, :, number].masked_fill(~valid, 0), valid, dense.masked_fill(~units, 0.0), units
            )
            found[layer] = narrow(whole, kept, wanted)
        return found


def _decode(stored: Mapping[str, Tensor], name: str) -> Tensor:
    values = stored[name].float()
    scale = stored.get(f"{name}.scale")
    return values if scale is None else values * scale.unsqueeze(-1)


def find_stored_rows(directory: Path, manifest: StoreManifest, rows: Rows) -> np.ndarray:
    """Where training rows lie in the store's order, (n,) int64.

    Raises:
        UserError: the store has no such task, or not these rows.
    """
    entry = manifest.task(rows.task)
    table = pq.read_table(directory / ROWS.format(task=rows.task))
    order = table["row"].to_numpy()
    if digest_rows(rows) == entry.digest:
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return places
    uids = table["uid"].to_pylist()
    known = dict(zip(uids, range(len(uids)), strict=True))
    places = np.array([known.get(uid, -1) for uid in rows.uids.to_pylist()], np.int64)
    strange = places < 0
    strange[~strange] = table["digest"].to_numpy()[places[~strange]] != row_digests(rows)[~strange]
    if strange.any():
        first = rows.uids[int(np.flatnonzero(strange)[0])].as_py()
        raise UserError(
            f"the store {directory} was built from other {rows.task} rows: it knows nothing of "
            f"{int(strange.sum()):,} of the {len(rows):,} rows here, the first of which is {first} "
            f"(digest of the rows {digest_rows(rows)[:12]}, of the store's {entry.digest[:12]})",
            hint="give the `data`, `limit` and `corpus` it was built with (mtkd store info), "
            "or build a store from these rows",
        )
    return places
