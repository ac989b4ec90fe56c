"""Linear probes: fit new task heads to the features of the frozen encoder, before training starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.run_encoder import run_encoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.teachers.teacher_sources import IndexedLogits
from mtkd.time_trial import BATCHES, current_trial
from mtkd.train_settings import FEW_ROWS
from tasks.data.rows import has_label
from tasks.heads import Head
from tasks.task import Task
from tasks.task_types.results import LossSum
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

MAX_ROWS = 5000  # of each task; more rows hardly change a linear head
MAX_ROWS_WITH_LOGITS = 2000  # logits say more about a row than its label
# Strengths of the L2 penalty, relative to the mean squared distance of the features from their mean.
_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
_HELD_OUT = 0.2
_ITERATIONS = 100


def fit_linear_heads(
    model: MultiTaskModel,
    tasks: Mapping[str, Task],
    rows: Mapping[str, Encoded],
    batch_size: int,
    seed: int,
    *,
    bf16: bool = False,
    logits: Mapping[str, IndexedLogits] | None = None,
) -> list[str]:
    """Fit each linear head to the pooled features of the frozen encoder (LP-FT, Kumar et al. 2022).

    Fine-tuning that starts from a random head first distorts the pretrained features; with few rows it does
    not recover. A head minimises loss(W x + b) + λ ‖W‖² by L-BFGS, where the loss is the task's own, summed
    over at most `MAX_ROWS` rows, and λ is the strength with the lowest loss on a fifth of the rows when the
    head is fitted to the others. (A head that fits few rows without error leaves the encoder nothing to
    learn.) Heads with a hidden layer, heads of `span` tasks and heads without labelled rows are not changed.

    The heads of a student that learns from its teacher's logits can be fitted to these, by least squares.

    Args:
        model: on any device; its encoder runs in evaluation mode.
        tasks: name -> task.
        rows: task name -> rows; those without a label are left out, unless the task has `logits`.
        batch_size: rows that go through the encoder at once.
        seed: selects the rows of large tasks, and the held-out rows.
        bf16: run the encoder under bfloat16 autocast.
        logits: task name -> the teacher's logits (n, C) for the rows.

    Returns:
        The names of the tasks whose heads were fitted.
    """
    fitted = []
    for name, encoded in rows.items():
        task = tasks[name]
        head = model.heads[task.head]
        if isinstance(head, Head) and isinstance(head.inner, torch.nn.Identity):
            targets = (logits or {}).get(name)
            chosen = np.flatnonzero(has_label(encoded.labels)) if targets is None else np.arange(len(encoded))
            if not len(chosen):
                continue
            most = MAX_ROWS if targets is None else MAX_ROWS_WITH_LOGITS
            if len(chosen) > most:
                chosen = np.sort(np.random.default_rng(seed).choice(chosen, most, replace=False))
            trial = current_trial()
            started = time.monotonic()
            n_chosen = len(chosen)
            chosen = chosen[: BATCHES * batch_size] if trial else chosen
            with torch.autocast(next(model.parameters()).device.type, torch.bfloat16, enabled=bf16):
                features = _features(model, encoded, chosen, batch_size)
            probe = _Probe(task, *features)
            if targets is not None:
                values = torch.from_numpy(targets[chosen]).to(probe.vectors)
                probe = replace(probe, labels=values, compares_logits=True)
            _fit(probe, head.output, seed)
            if trial:
                trial.skipped += (time.monotonic() - started) * (n_chosen - len(chosen)) / len(chosen)
            fitted.append(name)
    return fitted


def probed_tasks(init_heads: str, tasks: Iterable[Task], encoder: AnyEncoder) -> list[str]:
    """The tasks whose heads start from a linear probe.

    With "auto", these are all but those with two texts that are read as one sequence: before training, the
    vector of such a sequence says little about how the texts relate, and a head that is fitted to it holds
    the encoder back.
    """
    if init_heads == "auto":
        joined = encoder.input_format == "joined"
        return [
            task.name
            for task in tasks
            if len(task.columns) == 1 or not joined or encoder.config.compares_texts(task)
        ]
    return [task.name for task in tasks] if init_heads == "linear-probe" else []


def probe_nearly_suffices(
    tasks: Collection[Any], probed: Collection[str], head_hidden_size: int, n_train: int
) -> bool:
    """True if little is left to learn: there are few rows, and all heads start from a linear probe.

    Args:
        probed: the tasks whose heads start from a linear probe.
        head_hidden_size: the size of the heads' hidden layer; 0 = linear heads, which a probe can fit.
        n_train: the number of training rows of all tasks.
    """
    return len(probed) == len(tasks) and not head_hidden_size and n_train < FEW_ROWS * len(tasks)


def _features(
    model: MultiTaskModel, encoded: Encoded, chosen: np.ndarray, batch_size: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The encoder's pooled features (n, d), and the labels and groups of the chosen rows."""
    collate, device = Collator(model.reader), next(model.parameters()).device
    was_training = model.training
    model.eval()
    vectors = []
    labels = []
    groups = []
    with torch.no_grad():
        for start in range(0, len(chosen), batch_size):
            batch = collate(encoded, chosen[start : start + batch_size]).to(device)
            pooled = run_encoder(model.encoder, batch.inputs, OutputSpec(pooled=True)).pooled
            assert pooled is not None and batch.labels is not None
            vectors.append(pooled.float())
            labels.append(batch.labels)
            groups += [] if batch.groups is None else [batch.groups]
    model.train(was_training)
    return torch.cat(vectors), torch.cat(labels), torch.cat(groups) if groups else None


@dataclass(frozen=True)
class _Probe:
    """The features (n, d), labels (or a teacher's logits) and groups that a head is fitted to."""

    task: Task
    vectors: Tensor
    labels: Tensor
    groups: Tensor | None
    compares_logits: bool = False

    def take(self, rows: Tensor) -> _Probe:
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, vectors=self.vectors[rows], labels=self.labels[rows], groups=groups)

    def loss(self, output: nn.Linear) -> LossSum:
        if self.compares_logits:
            squares = (output(self.vectors) - self.labels).square().mean(1)
            return LossSum(squares.sum(), squares.new_tensor(len(squares)))
        return self.task.type.loss(self.task, output(self.vectors), self.labels, self.groups)


def _fit(probe: _Probe, output: nn.Linear, seed: int) -> None:
    """Fit a linear layer with the penalty that suits held-out rows."""
    center, scale = probe.vectors.mean(0), probe.vectors.var(0, correction=0).sum().sqrt()
    probe = replace(probe, vectors=(probe.vectors - center) / scale.clamp(min=1e-12))
    rows = torch.arange(len(probe.labels)) if probe.groups is None else probe.groups.cpu()
    groups, group_of_row = rows.unique(return_inverse=True)  # the rows of a group stay together
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    held_out = (order < _HELD_OUT * len(groups))[group_of_row].to(probe.vectors.device)
    fitted = probe.take((~held_out).nonzero()[:, 0])
    judged = probe.take(held_out.nonzero()[:, 0])
    losses = []
    for strength in _STRENGTHS if len(judged.labels) else ():
        _minimise(fitted, output, strength)
        with torch.no_grad():
            losses.append(judged.loss(output).total.item())
    best = _STRENGTHS[int(np.argmin(losses))] if losses else _STRENGTHS[-1]
    _minimise(probe, output, best)
    with torch.no_grad():  # the same function of the features before they were standardised
        output.weight.div_(scale.clamp(min=1e-12))
        output.bias.sub_(output.weight @ center)


def _minimise(probe: _Probe, output: nn.Linear, penalty: float) -> None:
    torch.nn.init.zeros_(output.weight)
    torch.nn.init.zeros_(output.bias)
    optimizer = torch.optim.LBFGS(
        output.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = probe.loss(output)
        value: Tensor = (loss.total + penalty * output.weight.square().sum()) / loss.count.clamp(min=1)
        value.backward()
        return value

    step: Callable[[Callable[[], Tensor]], Tensor] = optimizer.step
    step(closure)
    optimizer.zero_grad(set_to_none=True)
