"""Fast dropout has the distribution of torch's dropout, also inside attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from mtkd.models.fast_dropout import Dropout, dropout, dropout_attention, use_dropout

NEVER = 1e-12  # a probability at which none of a few thousand values is dropped


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_values_are_dropped_independently(p: float) -> None:
    torch.manual_seed(0)
    dropped = torch.cat([dropout(torch.ones(997), p) for _ in range(300)]).reshape(300, 997).numpy() == 0
    assert stats.binomtest(int(dropped.sum()), dropped.size, p).pvalue > 1e-3
    # equally often at every position, including the first and the last of a call ...
    counts = dropped.sum(0)
    assert stats.chisquare([counts[:99].sum(), counts[-99:].sum(), counts[400:499].sum()]).pvalue > 1e-3
    assert stats.binomtest(int(counts[0]), 300, p).pvalue > 1e-3
    assert stats.binomtest(int(counts[-1]), 300, p).pvalue > 1e-3
    # ... and independently of the value before and of the call before
    for one, other in ((dropped[:, :-1], dropped[:, 1:]), (dropped[:-1], dropped[1:])):
        assert stats.binomtest(int((one & other).sum()), one.size, p * p).pvalue > 1e-3
    # the number per call has a binomial distribution
    spread = dropped.sum(1).var() / (997 * p * (1 - p))
    assert stats.chi2.sf(spread * 300, 299) > 1e-3 and stats.chi2.cdf(spread * 300, 299) > 1e-3


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_kept_values_are_scaled_and_the_gradient_has_the_same_mask(kind: torch.dtype) -> None:
    values = torch.randn(7, 30, 5, dtype=kind).transpose(0, 2).requires_grad_()
    torch.manual_seed(1)
    made = dropout(values, 0.25)
    stays = made != 0
    assert made.dtype == kind and made.shape == values.shape and 0.6 < stays.float().mean() < 0.9
    assert torch.equal(made[stays], (values / 0.75)[stays])
    made.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.where(stays, 1 / torch.tensor(0.75, dtype=kind), 0))
    torch.manual_seed(1)
    assert torch.equal(dropout(values, 0.25), made)
    assert not torch.equal(dropout(values, 0.25), made)


def test_the_gradient_matches_finite_differences() -> None:
    values = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def seeded(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return dropout(values, 0.4)

    assert torch.autograd.gradcheck(seeded, (values,))


def test_probabilities_of_zero_and_one() -> None:
    values = torch.ones(50)
    assert dropout(values, 0.0) is values and dropout(values[:0], 0.5).shape == (0,)
    assert torch.equal(dropout(values, 1.0), torch.zeros(50))
    assert torch.equal(dropout(values, NEVER), values)
    assert torch.equal(dropout(values, 1e-300), values)


def test_modules_are_replaced_and_inactive_in_evaluation() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3))
    outer = nn.ModuleDict({"a": inner, "b": nn.Dropout(0.2)})
    outer.eval()
    use_dropout(outer)
    found = [module for module in outer.modules() if isinstance(module, nn.Dropout)]
    assert sorted(module.p for module in found) == [0.2, 0.3]
    assert all(type(module) is Dropout and not module.training for module in found)
    values = torch.randn(4, 3)
    assert outer["b"](values) is values
    assert (outer.train()["b"](torch.ones(1000)) == 0).any()


def masks(rows: int, length: int) -> list[torch.Tensor | None]:
    real = torch.arange(length) < torch.arange(length - rows + 1, length + 1)[:, None]
    return [None, real[:, None, None], torch.randn(rows, 4, length, length)]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_without_dropped_values_matches_torch(number: int, scaling: float | None) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 9, 4, 8).transpose(1, 2).requires_grad_() for _ in range(3))
    mask, weights = masks(3, 9)[number], torch.randn(3, 4, 9, 8)
    expected = functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    for p in (0.0, NEVER):
        found = dropout_attention(query, key, value, mask, scaling, p)
        assert torch.allclose(found, expected, atol=1e-6)
        ours = torch.autograd.grad((found * weights).sum(), (query, key, value))
        theirs = torch.autograd.grad((expected * weights).sum(), (query, key, value), retain_graph=True)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    if mask is None or mask.dtype == torch.bool:
        exact = dropout_attention(query.double(), key.double(), value.double(), mask, scaling, 0.0)
        assert torch.allclose(exact.float(), expected, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = dropout_attention(query, key, value, mask, scaling, 0.0)
    assert reduced.dtype == torch.bfloat16 and torch.allclose(reduced.float(), expected, atol=0.05)


def test_attention_drops_probabilities() -> None:
    torch.manual_seed(0)
    query, key, length = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4), 6
    value = torch.eye(length).expand(2, 3, length, length)  # so that the result is the probabilities
    whole = dropout_attention(query, key, value, None, 0.5, 0.0)
    found = dropout_attention(query, key, value, None, 0.5, 0.25)
    stays = found != 0
    assert 0.5 < stays.float().mean() < 0.95
    assert torch.allclose(found[stays], (whole / 0.75)[stays])
    mean = torch.stack([dropout_attention(query, key, value, None, 0.5, 0.25) for _ in range(2000)]).mean(0)
    error = whole * np.sqrt(0.25 / 0.75 / 2000)
    assert ((mean - whole).abs() < 5 * error).all()
