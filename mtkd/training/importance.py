"""How important the parts of a fine-tuned teacher are for its tasks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance, layer_parts
from tasks.batching import Collator, Encoded
from tasks.errors import UserError
from tasks.progress import progress
from tasks.task import Task

_ROWS = 1024  # of each task


def measure_importance(
    teacher: MultiTaskModel, tasks: Mapping[str, Task], data: Mapping[str, Encoded], batch_size: int = 32
) -> Importance:
    """First-order importance of layers, heads and feed-forward units, from the loss on labels (ROSITA).

    Args:
        data: task -> training rows as the teacher reads them; up to 1,024 labelled ones of each are used.

    Raises:
        UserError: no row has a label, or the teacher's layers cannot be told apart.
    """
    encoder = teacher.encoder
    if not isinstance(encoder, TransformerEncoder):
        raise UserError("only a Transformer teacher can be pruned into a student")
    parts = layer_parts(encoder.body, encoder.n_layers)
    objective = labels_objective()
    collate = Collator(teacher.reader)
    sums = [{"heads": torch.zeros(()), "units": torch.zeros(()), "layer": torch.zeros(())} for _ in parts]
    random = np.random.default_rng(0)
    labelled = {name: np.flatnonzero(rows.labelled) for name, rows in data.items()}
    chosen = {name: random.permutation(rows)[:_ROWS] for name, rows in labelled.items()}
    if not any(map(len, chosen.values())):
        raise UserError("a student is cut out of its teacher by the loss on labels, and no row has a label")
    device = next(teacher.parameters()).device
    teacher.eval().requires_grad_(True)
    with progress("importance", sum(map(len, chosen.values()))) as advance:
        for name, rows in chosen.items():
            for start in range(0, len(rows), batch_size):
                batch = collate(data[name], rows[start : start + batch_size]).to(device)
                signal = teacher(batch.inputs, tasks[name].head)
                loss, _ = objective(tasks[name], batch, signal, None, objective.num_items(tasks[name], batch))
                teacher.zero_grad(set_to_none=True)
                loss.backward()
                for layer, found in zip(parts, sums, strict=True):
                    heads = _change(layer["output"][1]).view(encoder.shape.heads, -1).sum(1)
                    units = _change(layer["down"][1])
                    found["heads"] = found["heads"] + heads.abs().cpu()
                    found["units"] = found["units"] + units.abs().cpu()
                    found["layer"] = found["layer"] + (heads.sum() + units.sum()).abs().cpu()
                advance(len(batch))
    teacher.zero_grad(set_to_none=True)
    teacher.requires_grad_(False)
    return Importance(*(torch.stack([found[kind] for found in sums]) for kind in ("layer", "heads", "units")))


def _change(linear: nn.Linear) -> Tensor:
    """(n_in,) the sum of w dL/dw over what each input of a linear map feeds."""
    assert linear.weight.grad is not None, "every layer has a part in the loss"
    return (linear.weight * linear.weight.grad).detach().sum(0)
