"""Losses on windows of tokens, compared with loops and hand-computed numbers; incompatible models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from mtkd.losses.objective import Objective, build_objective
from mtkd.losses.pooled import pooled_attention_score_mse, pooled_hidden_mse
from mtkd.models.encoders.waldorf import WaldorfConfig
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from mtkd.recipes import load_settings
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.batching import Batch, ModelInputs, Tokens

RTE = TASKS["rte"]
STUDENT = WaldorfConfig(
    vocab_size=10, embedding_size=3, layers=8, hidden_size=6, heads=2, head_size=3, output_size=5
).spec
MASK = torch.arange(7) < torch.tensor([[7], [3], [5], [0]])


def bert(layers: int, heads: int = 2) -> EncoderSpec:
    states, every = frozenset(range(layers + 1)), frozenset(range(1, layers + 1))
    offers = OutputSpec(
        pooled=True,
        **dict.fromkeys(("cls", "hidden"), states),
        **dict.fromkeys(("query", "key", "value", "context", "scores"), every),
    )
    return EncoderSpec("bert", layers, 4, 4, heads, 4, offers)


def objective(teacher: EncoderSpec = bert(24), student: EncoderSpec = STUDENT, **terms: dict) -> Objective:  # noqa: B008
    settings = validate(DistillSettings, {"name": "", "summary": "", "source": "", "terms": terms})
    return build_objective(settings.terms, student, teacher, [RTE])


def hidden_loop(h_s: Tensor, h_t: Tensor, mask: Tensor, stride: int) -> float:
    values = []
    for b, length in enumerate(mask.sum(1).tolist()):
        for k in range(-(-length // stride)):
            window = [h_t[b, t] for t in range(k * stride, min(length, k * stride + stride))]
            values.append(((h_s[b, k] - sum(window) / len(window)) ** 2).mean().item())
    return sum(values) / len(values)


def score_loop(a_s: Tensor, a_t: Tensor, mask: Tensor, stride: int) -> float:
    values = []
    for b, length in enumerate(mask.sum(1).tolist()):
        windows = [range(k, min(length, k + stride)) for k in range(0, length, stride)]
        for head in range(a_s.shape[1]):
            for q, queries in enumerate(windows):
                best = [max(a_t[b, head, i, j].item() for i in queries for j in keys) for keys in windows]
                values.append(
                    sum((a_s[b, head, q, k].item() - m) ** 2 for k, m in enumerate(best)) / len(best)
                )
    return sum(values) / len(values)


def drawn(stride: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return student and teacher states and scores; padding is NaN."""
    torch.manual_seed(0)
    windows = -(-7 // stride)
    h_s, a_s = (torch.randn(4, *size, dtype=dtype) for size in ((windows, 4), (2, windows, windows)))
    h_t = torch.randn(4, 7, 4, dtype=dtype).masked_fill(~MASK.unsqueeze(-1), torch.nan)
    pairs = (MASK.unsqueeze(1) & MASK.unsqueeze(2)).unsqueeze(1)
    return h_s, h_t, a_s, torch.randn(4, 2, 7, 7, dtype=dtype).masked_fill(~pairs, torch.nan)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_losses_match_loops(stride: int) -> None:
    h_s, h_t, a_s, a_t = drawn(stride)
    close = {"rel": 1e-5}
    assert pooled_hidden_mse(h_s, h_t, MASK, stride).item() == pytest.approx(
        hidden_loop(h_s, h_t, MASK, stride), **close
    )
    assert pooled_attention_score_mse(a_s, a_t, MASK, stride).item() == pytest.approx(
        score_loop(a_s, a_t, MASK, stride), **close
    )


def test_losses_match_hand_computed_values() -> None:
    mask = torch.tensor([[True] * 6 + [False] * 2])
    h_t = torch.tensor([1.0, 2.0, 3.0, 6.0, 4.0, 8.0, 100.0, 100.0]).view(1, 8, 1)
    h_s = torch.tensor([1.0, 7.0]).view(1, 2, 1)  # means 3 and 6
    assert pooled_hidden_mse(h_s, h_t, mask, 4).item() == pytest.approx((4 + 1) / 2)
    a_t = torch.arange(64.0).view(1, 1, 8, 8)  # largest: 27, 29; 43, 45
    a_s = torch.tensor([[[[27.0, 30.0], [41.0, 45.0]]]])
    assert pooled_attention_score_mse(a_s, a_t, mask, 4).item() == pytest.approx((0 + 1 + 4 + 0) / 4)
    nothing = torch.zeros(1, 8, dtype=torch.bool)
    assert (
        pooled_hidden_mse(h_s, h_t, nothing, 4) == 0 and pooled_attention_score_mse(a_s, a_t, nothing, 4) == 0
    )


def test_gradients_in_float64_and_no_nan_from_padding() -> None:
    h_s, h_t, a_s, a_t = drawn(4, torch.float64)
    assert gradcheck(lambda h: pooled_hidden_mse(h, h_t, MASK, 4), h_s.requires_grad_())
    assert gradcheck(lambda a: pooled_attention_score_mse(a, a_t, MASK, 4), a_s.requires_grad_())


def test_padding_changes_nothing() -> None:
    h_s, h_t, a_s, a_t = drawn(4)
    far = torch.nn.functional.pad(MASK, (0, 6))
    h = torch.nn.functional.pad(h_s, (0, 0, 0, 2), value=9.0), torch.nn.functional.pad(h_t, (0, 0, 0, 6))
    a = torch.nn.functional.pad(a_s, (0, 2, 0, 2), value=9.0), torch.nn.functional.pad(a_t, (0, 6, 0, 6))
    torch.testing.assert_close(pooled_hidden_mse(*h, far, 4), pooled_hidden_mse(h_s, h_t, MASK, 4))
    torch.testing.assert_close(
        pooled_attention_score_mse(*a, far, 4), pooled_attention_score_mse(a_s, a_t, MASK, 4)
    )


def test_losses_are_computed_in_float32_under_autocast() -> None:
    h_s, h_t, a_s, a_t = drawn(4)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = pooled_hidden_mse(h_s.bfloat16(), h_t.bfloat16(), MASK, 4)
        scores = pooled_attention_score_mse(a_s.bfloat16(), a_t.bfloat16(), MASK, 4)
    assert narrow.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(narrow, pooled_hidden_mse(h_s, h_t, MASK, 4), rtol=0.02, atol=0)
    torch.testing.assert_close(scores, pooled_attention_score_mse(a_s, a_t, MASK, 4), rtol=0.02, atol=0)


def test_terms_are_sums_over_layers_and_windows_with_one_projection() -> None:
    torch.manual_seed(0)
    both = objective(
        hid={"loss": "pooled_hidden_mse", "layer_map": [[1, 3], [2, 6]]},
        att={"loss": "pooled_attention_score_mse", "layer_map": [[1, 3]]},
    )
    assert len(list(both.parameters())) == 1
    mask = MASK[:3]
    h_s = {layer: torch.randn(3, 2, 6) for layer in (1, 2)}
    h_t = {layer: torch.randn(3, 7, 4) for layer in (3, 6)}
    a_s, a_t = {1: torch.randn(3, 2, 2, 2)}, {3: torch.randn(3, 2, 7, 7)}
    tokens = Tokens(mask.long(), mask, mask.long())
    given = Batch("rte", np.arange(3), torch.zeros(3), None, ModelInputs(joined=tokens), None)
    units = both.num_items(RTE, given)
    assert units == [5, 5], "2 + 1 + 2 windows"
    student, teacher = ModelOutput(hidden=h_s, scores=a_s, mask=mask), ModelOutput(hidden=h_t, scores=a_t)
    loss, (hid, att) = both(RTE, given, student, teacher, units)
    w = both.terms["hid"].projection.maps["all"].weight.detach()
    expected = sum(hidden_loop(h_s[n] @ w.T, h_t[m], mask, 4) for n, m in ((1, 3), (2, 6)))
    assert hid.item() == pytest.approx(expected, rel=1e-5)
    assert att.item() == pytest.approx(score_loop(a_s[1], a_t[3], mask, 4), rel=1e-5)
    assert loss.item() == pytest.approx((hid + att).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ({"loss": "hidden_mse"}, "token by token, but above the embeddings each state of the student"),
        ({"loss": "hidden_mse", "layer_map": [[0, 0], [1, 3]]}, "stands for 4 tokens"),
        ({"loss": "hidden_cosine", "projection": "shared"}, "stands for 4 tokens"),
        ({"loss": "hidden_knowledge"}, "stands for 4 tokens"),
        ({"loss": "attention_score_mse"}, "stands for 4 tokens"),
        ({"loss": "attention_kl"}, "stands for 4 tokens"),
        ({"loss": "relation"}, "stands for 4 tokens"),
        ({"loss": "cls_mse"}, "stands for 4 tokens"),
        ({"loss": "sample_similarity"}, "stands for 4 tokens"),
        (
            {"loss": "pooled_hidden_mse", "layer_map": [[0, 0]]},
            r"layer 0 \(the embeddings\) has one state",
        ),
        ({"loss": "pooled_hidden_mse", "projection": "none"}, r"width 6 \(student\) and 4 \(teacher\)"),
        ({"loss": "hidden_mse", "layer_map": [[0, 0]], "projection": "none"}, r"width 3 \(student\) and 4"),
    ],
)
def test_terms_incompatible_with_shortened_sequences_are_rejected(term: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective(t=term)


def test_different_numbers_of_heads_and_shortened_teachers_are_rejected() -> None:
    with pytest.raises(UserError, match="the student has 2 heads and the teacher 4") as refused:
        objective(bert(12, 4), t={"loss": "pooled_attention_score_mse"})
    assert any("`student.waldorf.heads=4`" in line for line in refused.value.lines())
    with pytest.raises(UserError, match=r"the teacher \(waldorf\) stands for 4 tokens"):
        objective(STUDENT, bert(8), t={"loss": "hidden_mse"})
    with pytest.raises(UserError, match=r"the teacher \(waldorf\) stands for 4 tokens"):
        objective(STUDENT, STUDENT, t={"loss": "pooled_hidden_mse"})


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (24, [3, 6, 9, 12, 15, 18, 21, 24]),
        (12, [2, 3, 5, 6, 8, 9, 11, 12]),
        (6, [1, 2, 2, 3, 4, 5, 5, 6]),
        (3, [1, 1, 1, 2, 2, 2, 3, 3]),
    ],
)
def test_the_recipe_supports_teachers_of_any_depth(layers: int, expected: list[int]) -> None:
    terms = load_settings("waldorf", "distill", {}).terms
    built = build_objective(terms, STUDENT, bert(layers), [RTE])
    assert built.terms["att"].layer_pairs == built.terms["hid"].layer_pairs == list(enumerate(expected, 1))
    assert built.terms["emb"].layer_pairs == [(0, 0)]
    assert built.terms["emb"].projection.maps["all"].weight.shape == (4, 3)


def test_embeddings_can_also_be_compared_by_their_relations() -> None:
    built = objective(t={"loss": "token_similarity"}, s={"loss": "sample_similarity", "row_vector": "pooled"})
    assert built.student_need == OutputSpec(pooled=True, hidden=frozenset({0}))
