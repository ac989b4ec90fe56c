"""Linear probes: fit new task heads to the features of the frozen encoder, before training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from tasks.batching import Collator, Encoded
from tasks.heads import Head
from tasks.task import Task

MAX_ROWS = 5000  # of each task; more rows hardly change a linear head
_L2 = 0.5  # as scikit-learn's LogisticRegression with C=1
_ITERATIONS = 100


def fit_linear_heads(
    model: MultiTaskModel, tasks: Mapping[str, Task], rows: Mapping[str, Encoded], batch_size: int, seed: int
) -> list[str]:
    """Fit each linear head to the pooled features of the frozen encoder (LP-FT, Kumar et al. 2022).

    Fine-tuning that starts from a random head first distorts the pretrained features; with few rows it does
    not recover. A head minimises loss(W x + b) + ‖W‖² / 2 by L-BFGS, where the loss is the task's own, summed
    over at most `MAX_ROWS` rows. Heads with a hidden layer and heads of `span` tasks are not changed.

    Args:
        model: on any device; it is in evaluation mode meanwhile.
        tasks: name -> task.
        rows: task name -> labelled rows.
        batch_size: rows that go through the encoder at once.
        seed: chooses the rows of large tasks.

    Returns:
        The names of the tasks whose heads were fitted.
    """
    fitted = []
    for name, encoded in rows.items():
        task = tasks[name]
        head = model.heads[task.head]
        if isinstance(head, Head) and isinstance(head.inner, torch.nn.Identity):
            chosen = np.arange(len(encoded.labels))
            if len(chosen) > MAX_ROWS:
                chosen = np.sort(np.random.default_rng(seed).choice(chosen, MAX_ROWS, replace=False))
            _fit(task, head, *_features(model, encoded, chosen, batch_size))
            fitted.append(name)
    return fitted


def _features(
    model: MultiTaskModel, encoded: Encoded, chosen: np.ndarray, batch_size: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The encoder's pooled features (n, d), and the labels and groups of the chosen rows."""
    collate, device = Collator(model.reader), next(model.parameters()).device
    was_training = model.training
    model.eval()
    vectors, labels, groups = [], [], []
    with torch.no_grad():
        for start in range(0, len(chosen), batch_size):
            batch = collate(encoded, chosen[start : start + batch_size]).to(device)
            pooled = model.encoder(batch.inputs, OutputSpec(pooled=True)).pooled
            assert pooled is not None and batch.labels is not None
            vectors.append(pooled.float())
            labels.append(batch.labels)
            groups += [] if batch.groups is None else [batch.groups]
    model.train(was_training)
    return torch.cat(vectors), torch.cat(labels), torch.cat(groups) if groups else None


def _fit(task: Task, head: Head, vectors: Tensor, labels: Tensor, groups: Tensor | None) -> None:
    output = head.output
    torch.nn.init.zeros_(output.weight)
    torch.nn.init.zeros_(output.bias)
    optimizer = torch.optim.LBFGS(
        output.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.type.loss(task, output(vectors), labels, groups)
        value: Tensor = (loss.total + _L2 * output.weight.square().sum()) / loss.count.clamp(min=1)
        value.backward()
        return value

    step: Callable[[Callable[[], Tensor]], Tensor] = optimizer.step
    step(closure)
    optimizer.zero_grad(set_to_none=True)
