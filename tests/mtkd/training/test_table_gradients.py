"""Training with sparse gradients of embedding tables equals training with dense ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional

from mtkd.models.fast_embedding import Embedding, use_embedding
from mtkd.training import table_gradients
from mtkd.training.parallel_module import ParallelModule
from mtkd.training.table_gradients import TableGradients

ROWS, WIDTH = 96, 4
FEW = torch.tensor([[3, 3, 7], [90, 0, 3]])  # with repeated ids, and the padding id 0
MANY = torch.arange(60).reshape(6, 10)  # too many for a sparse gradient


@pytest.fixture(autouse=True)
def _small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_gradients, "_MIN_VALUES", ROWS * WIDTH)


class Model(nn.Module):
    """A table and a layer; `fast` handles the table as in training."""

    def __init__(self, fast: bool):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, WIDTH, padding_idx=0)
        self.layer = nn.Linear(WIDTH, 2)
        if fast:
            use_embedding(self)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.layer(self.table(ids)).square().mean()
        return result


def _adam(fused: bool) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda module: torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1, fused=fused)


@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "steps", [[[FEW]] * 3, [[FEW, FEW.T + 1], [MANY], [FEW]], [[FEW, MANY], [MANY, FEW]]]
)
def test_weights_equal_those_of_dense_gradients(
    steps: list[list[Tensor]], fused: bool, max_norm: float | None
) -> None:
    reference = Model(fast=False)
    plain = _adam(fused)(reference)
    model = Model(fast=True)
    parallel = ParallelModule(Accelerator(cpu=True), model, _adam(fused)(model))
    for micro_batches in steps:
        for ids in micro_batches:
            reference(ids).backward()
            with parallel.micro_batch(last=True):
                model(ids).backward()
        gradient = model.table.weight.grad
        assert gradient is not None
        assert gradient.is_sparse == all(ids is not MANY for ids in micro_batches)
        if max_norm is not None:
            expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
            torch.testing.assert_close(parallel.clip_grad_norm(max_norm), expected)
        plain.step()
        plain.zero_grad()
        parallel.step()
        for name, expected in reference.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], expected, rtol=1e-5, atol=1e-6)
    assert model.table.weight.grad is None


def test_gradients_are_dense_outside_of_training_steps() -> None:
    model = Model(fast=True)
    gradients = TableGradients(model)
    with pytest.raises(ZeroDivisionError), gradients.sparse():
        assert isinstance(model.table, Embedding) and model.table.sparse
        raise ZeroDivisionError
    model(FEW).backward()
    assert model.table.weight.grad is not None and not model.table.weight.grad.is_sparse


def test_weighted_sums_of_rows_have_sparse_gradients_too() -> None:
    found = []
    for sparse in (False, True):
        model = Model(fast=True)
        assert isinstance(model.table, Embedding)
        gradients = TableGradients(model)
        with gradients.sparse():
            weights = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
            used = sparse and model.table.has_sparse_gradient(FEW)
            functional.embedding_bag(
                FEW, model.table.weight, mode="sum", per_sample_weights=weights, sparse=used
            ).cos().sum().backward()
        gradient = model.table.weight.grad
        assert gradient is not None and gradient.is_sparse == sparse
        gradients.to_dense()
        assert model.table.weight.grad is not None
        found.append(model.table.weight.grad.clone())
    torch.testing.assert_close(*found)


def test_tables_that_other_layers_use_and_small_ones_are_left_alone() -> None:
    tied, small = Model(fast=True), Model(fast=True)
    tied.layer = nn.Linear(WIDTH, ROWS, bias=False)
    tied.layer.weight = tied.table.weight
    small.table = Embedding(ROWS - 1, WIDTH)
    for model in (tied, small):
        with TableGradients(model).sparse():
            assert not model.table.sparse


def test_unusual_embeddings_are_left_to_torch() -> None:
    for options in ({"max_norm": 0.5}, {"scale_grad_by_freq": True}):
        model = Model(fast=False)
        model.table = nn.Embedding(ROWS, WIDTH, **options)  # type: ignore[arg-type]
        use_embedding(model)
        with TableGradients(model).sparse():
            model(FEW).backward()
        assert type(model.table) is nn.Embedding
        assert model.table.weight.grad is not None and not model.table.weight.grad.is_sparse
