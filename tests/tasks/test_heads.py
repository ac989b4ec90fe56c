"""The stochastic answer network, compared with the same equations in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tasks.heads import SANHead

WIDTH, CLASSES, STEPS = 6, 3, 5
FIRST = torch.tensor([[0, 1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
SECOND = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def naive(head: SANHead, premise: np.ndarray, hypothesis: np.ndarray) -> np.ndarray:
    """(K, C) the probabilities of each step for one row, from its (n, width) vectors of both texts."""
    w = {name: value.detach().double().numpy() for name, value in head.state_dict().items()}
    state = softmax(hypothesis @ w["summary.weight"][0] + w["summary.bias"]) @ hypothesis
    steps = []
    for _ in range(STEPS):
        read = softmax(premise @ (w["attention.weight"] @ state + w["attention.bias"])) @ premise
        features = np.concatenate([state, read, abs(state - read), state * read])
        steps.append(softmax(w["output.weight"] @ features + w["output.bias"]))
        from_read = np.split(w["cell.weight_ih"] @ read + w["cell.bias_ih"], 3)
        from_state = np.split(w["cell.weight_hh"] @ state + w["cell.bias_hh"], 3)
        reset, update = (sigmoid(from_read[n] + from_state[n]) for n in (0, 1))
        state = (1 - update) * np.tanh(from_read[2] + reset * from_state[2]) + update * state
    return np.array(steps)


@pytest.fixture
def head() -> SANHead:
    torch.manual_seed(0)
    made = SANHead(WIDTH, CLASSES, dropout=0.0, step_dropout=0.5)
    for weight in made.parameters():
        weight.data.mul_(2)
    return made


def test_probabilities_are_the_mean_over_the_steps(head: SANHead) -> None:
    vectors = torch.randn(2, 8, WIDTH) * 2
    with torch.no_grad():
        logits = head.eval()(vectors, FIRST, SECOND)
        padded = torch.cat([vectors, torch.randn(2, 3, WIDTH)], 1)
        more = torch.zeros(2, 3, dtype=torch.bool)
        again = head(padded, torch.cat([FIRST, more], 1), torch.cat([SECOND, more], 1))
    torch.testing.assert_close(logits, again)
    for row in range(2):
        premise, hypothesis = (vectors[row][mask[row]].double().numpy() for mask in (FIRST, SECOND))
        steps = naive(head, premise, hypothesis)
        assert np.ptp(steps, axis=0).max() > 0.01, "the steps differ"
        np.testing.assert_allclose(logits[row].exp().numpy(), steps.mean(0), atol=1e-5)
        np.testing.assert_allclose(logits[row].softmax(0).numpy(), steps.mean(0), atol=1e-5)


def test_training_averages_a_random_part_of_the_steps(head: SANHead) -> None:
    one = torch.randn(1, 8, WIDTH) * 2
    premise, hypothesis = (one[0][mask[0]].double().numpy() for mask in (FIRST, SECOND))
    steps = naive(head, premise, hypothesis)
    rows = 300
    masks = (mask[:1].expand(rows, -1) for mask in (FIRST, SECOND))
    logits = head.train()(one.expand(rows, -1, -1), *masks)
    subsets = [list(some) for n in range(1, STEPS + 1) for some in itertools.combinations(range(STEPS), n)]
    means = np.array([steps[some].mean(0) for some in subsets])
    distances = np.abs(logits.exp().detach().numpy()[:, None] - means).max(2)
    assert distances.min(1).max() < 1e-5
    sizes = [len(subsets[number]) for number in distances.argmin(1)]
    assert set(sizes) == {1, 2, 3, 4, 5}
    assert abs(np.mean(sizes) - (1 + 4 * 0.5)) < 0.3
    logits[:, 0].sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in head.parameters())


def test_an_empty_text_counts_as_a_vector_of_zeros(head: SANHead) -> None:
    vectors = torch.randn(1, 8, WIDTH)
    zero = np.zeros((1, WIDTH))
    nothing = torch.zeros(1, 8, dtype=torch.bool)
    for first, second in ((FIRST[:1], nothing), (nothing, SECOND[:1])):
        texts = [vectors[0][mask[0]].double().numpy() if mask.any() else zero for mask in (first, second)]
        with torch.no_grad():
            logits = head.eval()(vectors, first, second)
        np.testing.assert_allclose(logits[0].exp().numpy(), naive(head, *texts).mean(0), atol=1e-5)
