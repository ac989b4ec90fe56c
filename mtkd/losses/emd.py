"""Many-to-many maps of layers by earth mover's distance: pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def emd(cost: Tensor, student_weights: Tensor | None = None, teacher_weights: Tensor | None = None) -> Tensor:
    """The flow F that moves the students' weights to the teacher's at least cost (BERT-EMD, Li et al. 2020).

    F >= 0 minimises sum_nm F_nm C_nm where the rows of F sum to the student's weights and the columns to the
    teacher's; the distance, and the loss, is (F * cost).sum(). A cost that is not finite gives the flow in
    proportion to both weights, so that the loss shows it.

    Args:
        cost: (N, M) of a unit moved from student layer n to teacher layer m; no gradient flows through F.
        student_weights, teacher_weights: (N,), (M,) >= 0, scaled to sum 1; None = uniform.

    Returns:
        (N, M) float32, on the device of `cost`.
    """
    import numpy as np
    from scipy.optimize import linprog

    n, m = cost.shape
    supply, demand = _shares(student_weights, n), _shares(teacher_weights, m)
    costs = cost.detach().double().cpu()
    flow = torch.outer(supply, demand)
    if costs.isfinite().all() and costs.any():
        sums = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
        # The solver's tolerances are absolute, so the costs are brought to 1.
        scaled = (costs / costs.abs().max()).flatten().numpy()
        solved = linprog(scaled, A_eq=sums, b_eq=torch.cat([supply, demand]).numpy(), method="highs")
        if not solved.success:
            raise ValueError(f"no flow between layers of weights {supply.tolist()} and {demand.tolist()}")
        flow = torch.from_numpy(solved.x).view(n, m)
    return flow.to(cost.device, torch.float32)


def emd_weights(cost: Tensor, flow: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """New weights of the layers: what is cheap to move weighs more (BERT-EMD's cost attention).

    c_n = sum_m F_nm C_nm / sum_m F_nm is the average transfer cost of student layer n, and its new weight
    softmax_n(r_n / ρ) with r_n = (1/c_n) / sum_k (1/c_k); the teacher's likewise by columns. (The paper's
    softmax over the authors' normalised shares; their code stops at r.)

    Args:
        cost, flow: (N, M) what `emd` was given and gave; both constants.
        temperature: ρ > 0; the larger, the nearer to each other are the weights.

    Returns:
        (N,) and (M,) float32 weights of student and teacher layers, each of sum 1.
    """
    spent, moved = (cost * flow).detach().double(), flow.detach().double()
    student, teacher = (_attention(spent.sum(axis), moved.sum(axis), temperature) for axis in (1, 0))
    return student, teacher


def _shares(weights: Tensor | None, count: int) -> Tensor:
    """(count,) float64 weights of sum 1."""
    given = torch.ones(count, dtype=torch.float64) if weights is None else weights.detach().double().cpu()
    return given / given.sum()


def _attention(spent: Tensor, moved: Tensor, temperature: float) -> Tensor:
    """Weights by the inverse of each layer's average cost; never NaN where nothing moves or costs."""
    tiny = torch.finfo(torch.float32).tiny
    inverse = (spent / moved.clamp(min=tiny)).clamp(min=tiny).reciprocal()
    return (inverse / inverse.sum() / temperature).softmax(0).float()
