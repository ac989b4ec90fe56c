"""Measuring the importance of the parts of a fine-tuned teacher for its tasks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance, layer_parts
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.task import Task
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

_ROWS = 1024  # rows per task


def measure_importance(
    teacher: MultiTaskModel,
    tasks: Mapping[str, Task],
    data: Mapping[str, Encoded],
    seed: int = 0,
    batch_size: int = 32,
) -> Importance:
    """First-order importance of layers, heads and feed-forward units, from the loss on labels (ROSITA).

    I(part) = sum over batches of |sum over the weights w of the part of w dL/dw|, where L is the mean loss of
    a batch: to first order, the change of L if the part were removed. The weights of a head are the columns
    of the attention's output matrix that read it; those of a feed-forward unit, its column of the layer's
    second matrix; and those of a layer, all of these.

    Args:
        data: task -> training rows as the teacher reads them; up to 1,024 labelled rows per task are used.
        seed: the random seed that chooses these rows.

    Raises:
        UserError: no row has a label, or the layers of the teacher cannot be identified.
    """
    encoder = teacher.encoder
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(
            f"the teacher's encoder ({type(encoder).__name__}) cannot be pruned into a student",
            expected="a Transformer teacher",
        )
    parts = layer_parts(encoder.body, encoder.n_layers)
    objective = labels_objective()
    sums = [{"heads": torch.zeros(()), "units": torch.zeros(()), "layer": torch.zeros(())} for _ in parts]
    random = np.random.default_rng(seed)
    labelled = {name: np.flatnonzero(rows.labelled) for name, rows in data.items()}
    chosen = {name: random.permutation(rows)[:_ROWS] for name, rows in labelled.items()}
    if not any(map(len, chosen.values())):
        raise UserError(
            "pruning the teacher into a student needs labelled rows, and no row has a label",
            hint="add labelled rows, or leave `student.transformer.prune` out",
        )
    device = next(teacher.parameters()).device
    teacher.eval().requires_grad_(True)
    with progress("importance", sum(map(len, chosen.values()))) as advance:
        for name, rows in chosen.items():
            collate = Collator(teacher.reader_of(tasks[name]))
            for start in range(0, len(rows), batch_size):
                batch = collate(data[name], rows[start : start + batch_size]).to(device)
                outputs = teacher(batch.inputs, tasks[name].head)
                loss, _ = objective(
                    tasks[name], batch, outputs, None, objective.num_items(tasks[name], batch)
                )
                teacher.zero_grad(set_to_none=True)
                loss.backward()
                for layer, total in zip(parts, sums, strict=True):
                    heads = _first_order_change(layer["output"][1]).view(encoder.spec.heads, -1).sum(1)
                    units = _first_order_change(layer["down"][1])
                    total["heads"] = total["heads"] + heads.abs().cpu()
                    total["units"] = total["units"] + units.abs().cpu()
                    total["layer"] = total["layer"] + (heads.sum() + units.sum()).abs().cpu()
                advance(len(batch))
    teacher.zero_grad(set_to_none=True)
    teacher.requires_grad_(False)
    return Importance(*(torch.stack([total[kind] for total in sums]) for kind in ("layer", "heads", "units")))


def _first_order_change(linear: nn.Linear) -> Tensor:
    """(n_in,) the sum of w dL/dw over the outputs, for each input of a linear layer."""
    assert linear.weight.grad is not None, "every layer contributes to the loss"
    return (linear.weight * linear.weight.grad).detach().sum(0)
