"""Many-to-many layer maps by earth mover's distance (BERT-EMD): pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def emd_flow(
    cost: Tensor, student_weights: Tensor | None = None, teacher_weights: Tensor | None = None
) -> Tensor:
    """Find the cheapest flow F from the student layers to the teacher layers (BERT-EMD, Li et al. 2020).

    F >= 0 minimises sum_nm F_nm C_nm, where the rows of F sum to the student weights and the columns to the
    teacher weights. The distance, which is the loss, is (F * cost).sum(). If a cost is not finite, F is the
    product of both weights, so that the loss is not finite either.

    Args:
        cost: (N, M) the cost of moving one unit from student layer n to teacher layer m; no gradient flows
            through F.
        student_weights, teacher_weights: (N,) and (M,), >= 0, rescaled to sum to 1; None = uniform.

    Returns:
        (N, M) float32, on the device of `cost`.

    Raises:
        ValueError: the solver fails.
    """
    import numpy as np
    from scipy.optimize import linprog

    n, m = cost.shape
    supply, demand = _shares(student_weights, n), _shares(teacher_weights, m)
    costs = cost.detach().double().cpu()
    flow = torch.outer(supply, demand)
    if costs.isfinite().all() and costs.any():
        sums = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
        # The solver's tolerances are absolute, so the costs are scaled to at most 1.
        scaled = (costs / costs.abs().max()).flatten().numpy()
        solution = linprog(scaled, A_eq=sums, b_eq=torch.cat([supply, demand]).numpy(), method="highs")
        if not solution.success:
            raise ValueError(f"no flow between layers of weights {supply.tolist()} and {demand.tolist()}")
        flow = torch.from_numpy(solution.x).view(n, m)
    return flow.to(cost.device, torch.float32)


def emd_weights(cost: Tensor, flow: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compute new layer weights, larger for layers that are cheap to move (BERT-EMD's cost attention).

    c_n = sum_m F_nm C_nm / sum_m F_nm is the average transfer cost of student layer n. Its new weight is
    softmax_n(r_n / ρ) with r_n = (1/c_n) / sum_k (1/c_k); the teacher weights are computed likewise from the
    columns. (The softmax is the paper's, the normalised r the authors' code, which has no softmax.)

    Args:
        cost, flow: (N, M) the input and the result of `emd_flow`; no gradient flows to either.
        temperature: ρ > 0; larger values make the weights more equal.

    Returns:
        (N,) and (M,) float32 weights of the student and teacher layers, each summing to 1.
    """
    spent, moved = (cost * flow).detach().double(), flow.detach().double()
    student, teacher = (_layer_weights(spent.sum(axis), moved.sum(axis), temperature) for axis in (1, 0))
    return student, teacher


def _shares(weights: Tensor | None, count: int) -> Tensor:
    """(count,) float64 weights that sum to 1."""
    raw = torch.ones(count, dtype=torch.float64) if weights is None else weights.detach().double().cpu()
    return raw / raw.sum()


def _layer_weights(spent: Tensor, moved: Tensor, temperature: float) -> Tensor:
    """Weights from the inverse of each layer's average cost; finite even where nothing moves or costs."""
    tiny = torch.finfo(torch.float32).tiny
    inverse = (spent / moved.clamp(min=tiny)).clamp(min=tiny).reciprocal()
    return (inverse / inverse.sum() / temperature).softmax(0).float()
