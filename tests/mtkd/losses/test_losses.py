"""Losses compared with loops written from their equations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import pad

from mtkd.losses import relation_gradient
from mtkd.losses.attention import attention_kl, attention_score_mse
from mtkd.losses.contrastive import sample_contrastive
from mtkd.losses.emd import emd_flow, emd_weights
from mtkd.losses.hidden import cosine_distance, masked_mse, patient_cls_mse
from mtkd.losses.logits import logits_mse, soft_label_kl, squared_distance
from mtkd.losses.relations import relation_kl, sample_similarity_kl, token_similarity_kl


def test_logits_mse_is_the_mean_of_squares() -> None:
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    naive = sum((student[b, c] - teacher[b, c]).item() ** 2 for b in range(5) for c in range(3)) / 15
    assert logits_mse(student, teacher).item() == pytest.approx(naive, rel=1e-5)


def test_logits_distance_is_the_squared_norm_of_a_row() -> None:
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    naive = sum(torch.linalg.vector_norm(student[b] - teacher[b]).item() ** 2 for b in range(5)) / 5
    assert squared_distance(student, teacher).item() == pytest.approx(naive, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_label_kl_is_t_squared_times_kl(temperature: float) -> None:
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)
    naive = 0.0
    for row in range(4):
        p, q = ((z[row] / temperature).exp() for z in (teacher, student))
        p, q = p / p.sum(), q / q.sum()
        naive += sum(p[c].item() * math.log(p[c].item() / q[c].item()) for c in range(3))
    expected = naive / 4 * temperature**2
    assert soft_label_kl(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-4)


def test_masked_mse_ignores_padding_and_is_finite_for_only_padding() -> None:
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    student[~mask] = torch.nan
    tokens = [(0, 0), (0, 1), (1, 0)]
    naive = sum(((student[b, t] - teacher[b, t]) ** 2).mean().item() for b, t in tokens) / 3
    assert masked_mse(student, teacher, mask).item() == pytest.approx(naive, rel=1e-5)
    assert masked_mse(student, teacher, torch.zeros(2, 3, dtype=torch.bool)).item() == 0.0


def test_gradients_in_float64() -> None:
    student = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, dtype=torch.float64)
    assert gradcheck(lambda z: soft_label_kl(z, teacher, 2.0), student)
    assert gradcheck(lambda z: logits_mse(z, teacher), student)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    assert gradcheck(lambda h: masked_mse(h, torch.zeros_like(h), mask), hidden)


@dataclass(frozen=True)
class MaskedCase:
    """A masked loss and its loop; for relations, the first half of the width of 8 is Q, the second K."""

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    loop: Callable[[Tensor, Tensor, list[list[int]]], float]
    student: tuple[int, ...]
    teacher: tuple[int, ...]

    def drawn(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Student and teacher, the student's with a gradient."""
        torch.manual_seed(0)
        return torch.randn(self.student, dtype=dtype, requires_grad=True), torch.randn(self.teacher).to(dtype)


def token_loop(of_token: Callable[[Tensor, Tensor], float]) -> Callable[..., float]:
    """The mean over valid tokens of a function of two vectors."""

    def loop(student: Tensor, teacher: Tensor, tokens: list[list[int]]) -> float:
        values = [of_token(student[b, t], teacher[b, t]) for b, valid in enumerate(tokens) for t in valid]
        return sum(values) / len(values)

    return loop


def relation_loop(relation_heads: int, cross: bool = False) -> Callable[..., float]:
    """The mean over relation heads and valid queries of KL(teacher || student), in a loop."""

    def row(x: Tensor, query: int, valid: list[int], part: int) -> list[float]:
        a, b = x.chunk(2, -1) if cross else (x, x)
        width = a.shape[-1] // relation_heads
        columns = slice(part * width, part * width + width)
        return [(a[query, columns] @ b[key, columns]).item() / math.sqrt(width) for key in valid]

    def loop(student: Tensor, teacher: Tensor, tokens: list[list[int]]) -> float:
        values = [
            naive_kl(row(teacher[b], query, valid, part), row(student[b], query, valid, part))
            for b, valid in enumerate(tokens)
            for query in valid
            for part in range(relation_heads)
        ]
        return sum(values) / len(values)

    return loop


def naive_kl(teacher: list[float], student: list[float]) -> float:
    """KL(softmax(teacher) || softmax(student))."""
    p, q = ([math.exp(value) for value in logits] for logits in (teacher, student))
    return sum(x / sum(p) * math.log((x / sum(p)) / (y / sum(q))) for x, y in zip(p, q, strict=True))


def score_loop(student: Tensor, teacher: Tensor, tokens: list[list[int]]) -> float:
    """The mean over heads and valid queries of the mean over valid keys of the squared difference."""
    values = [
        sum((student[b, head, query, key] - teacher[b, head, query, key]).item() ** 2 for key in valid)
        / len(valid)
        for b, valid in enumerate(tokens)
        for head, query in itertools.product(range(2), valid)
    ]
    return sum(values) / len(values)


def attention_loop(student: Tensor, teacher: Tensor, tokens: list[list[int]]) -> float:
    """The mean over heads and valid queries of the KL over valid keys."""
    values = [
        naive_kl(teacher[b, head, query, valid].tolist(), student[b, head, query, valid].tolist())
        for b, valid in enumerate(tokens)
        for head, query in itertools.product(range(2), valid)
    ]
    return sum(values) / len(values)


def cross(s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
    """Q-K relations, Q and K side by side."""
    (q_s, k_s), (q_t, k_t) = s.chunk(2, -1), t.chunk(2, -1)
    return relation_kl(q_s, k_s, q_t, k_t, mask, 2)


def naive_cosine(s: Tensor, t: Tensor) -> float:
    """1 - cos."""
    return 1 - (s @ t / (s @ s).sqrt() / (t @ t).sqrt()).item()


MASKED = {
    "masked_mse": MaskedCase(
        masked_mse, token_loop(lambda s, t: (s - t).square().mean().item()), (3, 5, 4), (3, 5, 4)
    ),
    "cosine": MaskedCase(cosine_distance, token_loop(naive_cosine), (3, 5, 4), (3, 5, 4)),
    "self_relation": MaskedCase(
        lambda s, t, mask: relation_kl(s, s, t, t, mask, 2), relation_loop(2), (3, 5, 4), (3, 5, 6)
    ),
    "cross_relation": MaskedCase(cross, relation_loop(2, cross=True), (3, 5, 8), (3, 5, 12)),
    "token_similarity": MaskedCase(token_similarity_kl, relation_loop(1), (3, 5, 4), (3, 5, 6)),
    "attention_score_mse": MaskedCase(attention_score_mse, score_loop, (3, 2, 5, 5), (3, 2, 5, 5)),
    "attention_kl": MaskedCase(attention_kl, attention_loop, (3, 2, 5, 5), (3, 2, 5, 5)),
}
TOKENS: list[list[int]] = [[0, 1, 2], [], [0, 2, 3]]  # valid tokens per row
MASK = torch.tensor([[token in valid for token in range(5)] for valid in TOKENS])


def is_padding(x: Tensor) -> Tensor:
    """Where a (B, L, d) or (B, H, L, L) tensor has padding."""
    if x.dim() == 3:
        return ~MASK.unsqueeze(-1).expand_as(x)
    return ~(MASK.unsqueeze(1) & MASK.unsqueeze(2)).unsqueeze(1).expand_as(x)


@pytest.fixture(params=MASKED)
def case(request: pytest.FixtureRequest) -> MaskedCase:
    """Each loss that has a mask."""
    return MASKED[request.param]


def test_masked_losses_match_loops(case: MaskedCase) -> None:
    student, teacher = case.drawn()
    expected = case.loop(student, teacher, TOKENS)
    assert case.loss(student, teacher, MASK).item() == pytest.approx(expected, rel=1e-4)
    with torch.no_grad():
        assert case.loss(student, teacher, MASK).item() == pytest.approx(expected, rel=1e-4)
    assert case.loss(teacher, teacher, MASK).item() == pytest.approx(0.0, abs=1e-6)


def test_masked_losses_have_correct_gradients_for_the_student_only(case: MaskedCase) -> None:
    student, teacher = case.drawn(torch.float64)
    assert gradcheck(lambda x: 3 * case.loss(x, teacher, MASK), student, fast_mode=True)
    case.loss(student, teacher.requires_grad_(), MASK).backward()
    assert teacher.grad is None


def test_values_of_padding_do_not_matter(case: MaskedCase) -> None:
    student, teacher = case.drawn()
    case.loss(student, teacher, MASK).backward()
    for poison in (torch.nan, torch.inf):
        spoilt = student.detach().masked_fill(is_padding(student), poison).requires_grad_()
        loss = case.loss(spoilt, teacher.masked_fill(is_padding(teacher), poison), MASK)
        loss.backward()
        assert loss.item() == pytest.approx(case.loss(student, teacher, MASK).item())
        torch.testing.assert_close(spoilt.grad, student.grad)


def test_only_padding_gives_zero(case: MaskedCase) -> None:
    student, teacher = case.drawn()
    loss = case.loss(student, teacher, torch.zeros_like(MASK))
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None and not student.grad.any()


def test_more_padding_changes_nothing(case: MaskedCase) -> None:
    student, teacher = case.drawn()
    wider = (0, 0, 0, 3) if student.dim() == 3 else (0, 3, 0, 3)
    longer = case.loss(pad(student, wider), pad(teacher, wider), pad(MASK, (0, 3)))
    assert longer.item() == pytest.approx(case.loss(student, teacher, MASK).item(), rel=1e-6)


def test_losses_are_not_affected_by_autocast(case: MaskedCase) -> None:
    student, teacher = (x.detach().bfloat16() for x in case.drawn())
    expected = case.loss(student.float(), teacher.float(), MASK)
    student.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = case.loss(student, teacher, MASK)
    loss.backward()
    assert loss.dtype == torch.float32 and loss.item() == expected.item()
    assert student.grad is not None and student.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["self_relation", "cross_relation"])
def test_relations_on_other_devices_match_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = MASKED[name]
    student, teacher = case.drawn()
    expected = case.loss(student, teacher, MASK)
    (gradient,) = torch.autograd.grad(expected, student)
    monkeypatch.setattr(relation_gradient, "CPU_CHUNK", 1)  # one head at a time
    (by_head,) = torch.autograd.grad(case.loss(student, teacher, MASK), student)
    monkeypatch.setattr(relation_gradient, "_by_example", relation_gradient._by_chunk)
    monkeypatch.setattr(relation_gradient, "GPU_CHUNK", 100)  # two examples at a time, then one
    spoilt = student.detach().masked_fill(is_padding(student), torch.nan).requires_grad_()
    loss = case.loss(spoilt, teacher.masked_fill(is_padding(teacher), torch.inf), MASK)
    (by_piece,) = torch.autograd.grad(loss, spoilt)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(by_head, gradient)
    torch.testing.assert_close(by_piece, gradient)


def test_relations_reject_a_width_not_divisible_by_the_number_of_heads() -> None:
    x = torch.randn(1, 2, 6)
    with pytest.raises(ValueError, match=r"width of 6 .* 4 relation heads"):
        relation_kl(x, x, x, x, torch.ones(1, 2, dtype=torch.bool), 4)


def test_a_relation_matches_hand_computed_values() -> None:
    student, teacher = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [math.log(3) ** 0.5]]])
    # The teacher's rows are (1/2, 1/2) and (1/4, 3/4), the student's (1/2, 1/2) twice.
    expected = (0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2
    loss = token_similarity_kl(student, teacher, torch.ones(1, 2, dtype=torch.bool))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_sample_similarity_compares_the_rows_of_a_batch() -> None:
    student = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(4, 5, dtype=torch.float64)
    expected = relation_loop(1)(student[None], teacher[None], [[0, 1, 2, 3]])
    assert sample_similarity_kl(student, teacher).item() == pytest.approx(expected)
    assert gradcheck(lambda x: sample_similarity_kl(x, teacher), student)


@pytest.mark.parametrize("normalize", [True, False])
def test_sample_contrastive_matches_a_loop(normalize: bool) -> None:
    student = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 3, dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, torch.nan, 0.0, 2.0])
    known = [0, 1, 3, 4]
    rows = [*(student[i] for i in known), *(teacher[i] for i in known)]
    rows = [row / row.norm() if normalize else row for row in rows]
    of_row = [*(labels[i].item() for i in known)] * 2
    anchors = []
    for i, h in enumerate(rows):
        similar = {a: math.exp((h @ rows[a]).item() / 0.5) for a in range(len(rows)) if a != i}
        positives = [p for p in similar if of_row[p] == of_row[i]]
        anchors.append(sum(-math.log(similar[p] / sum(similar.values())) for p in positives) / len(positives))
    loss = sample_contrastive(student, teacher, labels, 0.5, normalize)
    assert loss.item() == pytest.approx(sum(anchors) / len(anchors))
    assert gradcheck(lambda x: sample_contrastive(x, teacher, labels, 0.5, normalize), student)


def test_sample_contrastive_matches_hand_computed_values_and_edge_cases() -> None:
    two = torch.eye(2)  # each row has one positive of similarity 1, and two others of 0
    expected = math.log(math.exp(1 / 0.07) + 2) - 1 / 0.07
    assert sample_contrastive(two, two, torch.tensor([0, 1])).item() == pytest.approx(expected, abs=1e-6)
    student = torch.randn(3, 4).mul(50).requires_grad_()
    none = sample_contrastive(student, torch.randn(3, 4), torch.full((3,), torch.nan))
    none.backward()
    assert none.item() == 0.0 and student.grad is not None and not student.grad.any()
    far = sample_contrastive(student, torch.randn(3, 4) * 50, torch.tensor([0, 0, 1]), normalize=False)
    far.backward()
    assert far.isfinite() and student.grad.isfinite().all()


def test_patient_cls_mse_matches_a_loop_and_is_finite_for_zeros() -> None:
    student = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 4, dtype=torch.float64)
    pairs = [(student[b, n], teacher[b, n]) for b in range(2) for n in range(3)]
    naive = sum((s / s.norm() - t / t.norm()).square().sum().item() for s, t in pairs) / 6
    assert patient_cls_mse(student, teacher).item() == pytest.approx(naive)
    assert gradcheck(lambda x: patient_cls_mse(x, teacher), student)
    zero = torch.zeros(1, 1, 4, requires_grad=True)
    loss = patient_cls_mse(zero, torch.ones(1, 1, 4))
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert zero.grad is not None and zero.grad.abs().max() <= 1


def test_emd_is_the_optimal_flow_and_has_the_given_marginals() -> None:
    cost = torch.rand(4, 4) * 1e-6  # below the solver's own tolerance
    best = min(
        sum(cost[n, m].item() for n, m in enumerate(order)) for order in itertools.permutations(range(4))
    )
    assert (emd_flow(cost) * cost).sum().item() == pytest.approx(best / 4, rel=1e-5)
    flow = emd_flow(
        torch.rand(2, 3, requires_grad=True), torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0, 2.0])
    )
    assert flow.dtype == torch.float32 and not flow.requires_grad and (flow >= 0).all()
    torch.testing.assert_close(flow.sum(1), torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(flow.sum(0), torch.tensor([0.25, 0.25, 0.5]))
    torch.testing.assert_close(emd_flow(torch.full((2, 4), torch.nan)), torch.full((2, 4), 1 / 8))


def test_emd_and_its_updated_weights_match_hand_computed_values() -> None:
    cost = torch.tensor([[1.0, 9.0, 9.0], [9.0, 3.0, 3.0]])
    flow = emd_flow(cost, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(flow, torch.tensor([[1.0, 0, 0], [0, 1, 1]]) / 3)
    student, teacher = emd_weights(cost, flow)
    # Average costs 1, 3 and 1, 3, 3; inverse shares 3/4, 1/4 and 3/5, 1/5, 1/5.
    torch.testing.assert_close(student, torch.tensor([0.75, 0.25]).softmax(0))
    torch.testing.assert_close(teacher, torch.tensor([0.6, 0.2, 0.2]).softmax(0))
    free, _ = emd_weights(torch.zeros(2, 2), emd_flow(torch.zeros(2, 2)))
    torch.testing.assert_close(free, torch.tensor([0.5, 0.5]))
