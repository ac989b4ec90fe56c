"""The part of hidden states that is kept, compared with loops written from the paper."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from mtkd.losses.hidden import HiddenMSE, masked_mse
from mtkd.losses.hidden_knowledge import HiddenKnowledge, selected_mse
from mtkd.losses.objective import build_objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import BY_LAYER, EncoderSpec, OutputSpec
from mtkd.selection import Selection
from mtkd.setting_errors import validate
from mtkd.teachers.hidden_selection import narrow_selection, select_in_layer, static_activations
from mtkd.teachers.teacher_sources import OnlineTeacher
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batching import Batch, Collator, Tokens
from tasks.tokens.encoding import Encoded

(RTE,) = resolve("rte")
SPEC = EncoderSpec("bert", 3, 8, 8, 2, 8, OutputSpec(**dict.fromkeys(BY_LAYER, frozenset(range(4)))))


@pytest.fixture(scope="module")
def teacher(tiny_encoder: Path) -> MultiTaskModel:
    return MultiTaskModel.without_heads(str(tiny_encoder), 32)


@pytest.fixture(scope="module")
def batch(teacher: MultiTaskModel) -> Batch:
    (rte,) = resolve("rte")
    rows = load_rows(open_data("pocket"), rte, "train", 6)
    return Collator(teacher.reader, teacher.reader)(Encoded.encode(rows, teacher.tokeniser), np.arange(6))


def naive(
    hidden: torch.Tensor, attention: torch.Tensor, ids: list[int], length: int, sep: int, s: Selection
) -> tuple[list[int], torch.Tensor]:
    """Return the kept positions of one row, most important first, and (n, d) states, with 0 where not kept.

    Args:
        hidden: (L, d); attention: (heads, L, L).
    """
    positions = list(range(length))
    if s.token_selection != "left":
        scores = [sum(float(head[0, t]) for head in attention) / len(attention) for t in positions]
        positions.sort(key=lambda t: -scores[t])
    if s.token_selection in ("att-no-sep", "att-last-no-sep"):
        positions = [t for t in positions if ids[t] != sep]
    positions = positions[: s.tokens]
    d = hidden.shape[1]
    kept = torch.zeros(len(positions), d)
    for row, t in enumerate(positions):
        order = sorted(range(d), key=lambda i: -abs(float(hidden[t, i])))
        for unit in order[: round(s.width * d)]:
            kept[row, unit] = hidden[t, unit]
    return positions, kept


@pytest.mark.parametrize("token_selection", ["left", "att", "att-no-sep", "att-last-no-sep"])
def test_what_is_kept_follows_the_paper(
    token_selection: str, teacher: MultiTaskModel, batch: Batch, tiny_encoder: Path
) -> None:
    from transformers import BertModel

    ranking = 3 if token_selection == "att-last-no-sep" else 2
    selection = Selection(
        5, token_selection, 0.25, "magnitude", () if token_selection == "left" else ((2, ranking),)
    )  # type: ignore[arg-type]
    need = OutputSpec(selected=frozenset({2}), selection=selection)
    (rte,) = resolve("rte")
    found = OnlineTeacher(teacher, need).outputs(rte, batch).selected[2]

    theirs = BertModel.from_pretrained(tiny_encoder, attn_implementation="eager").eval()
    tokens = batch.inputs.joined
    assert tokens is not None
    with torch.no_grad():
        out = theirs(
            input_ids=tokens.ids,
            attention_mask=tokens.mask.long(),
            token_type_ids=tokens.token_type_ids,
            output_hidden_states=True,
            output_attentions=True,
        )
    sep = teacher.tokeniser.layout(1).specials[-1][-1]
    for row in range(len(batch)):
        positions, kept = naive(
            out.hidden_states[2][row],
            out.attentions[ranking - 1][row],
            tokens.ids[row].tolist(),
            int(tokens.mask[row].sum()),
            sep,
            selection,
        )
        assert found.valid[row].sum() == len(positions)
        assert found.positions[row][: len(positions)].tolist() == positions
        torch.testing.assert_close(found.values[row][: len(positions)], kept, atol=1e-5, rtol=1e-5)
        assert (found.activations[row].sum(-1)[: len(positions)] == 4).all(), "a quarter of 16"


def test_short_rows_keep_all_their_tokens() -> None:
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    ends = torch.tensor([[False, False, True, True], [False, True, False, False]])
    tokens = Tokens(mask.long(), mask, mask.long(), ends)
    hidden = torch.arange(16.0).view(2, 4, 2) + 1
    ranks = torch.tensor([[0.1, 0.5, 0.9, 0.9], [0.2, 0.7, 0.0, 0.0]])
    found = select_in_layer(hidden, tokens, Selection(3, "att-no-sep", scored=((1, 1),)), ranks)
    assert found.positions.shape[1] == 2
    assert found.valid.tolist() == [[True, True], [True, False]]
    assert found.positions[0].tolist() == [1, 0], "the most attended first, [SEP] never"
    assert found.values[1, 1].abs().sum() == 0


def test_uniform_and_random_selections_are_the_same_for_every_vector() -> None:
    uniform = static_activations(10, Selection(width=0.3, activation_selection="uniform"))
    assert torch.nonzero(uniform).flatten().tolist() == [2, 6, 9], "round(i d / N_W), i = 1 .. 3, from 1"
    random = [
        static_activations(384, Selection(width=0.5, activation_selection="random", seed=seed))
        for seed in (0, 1, 1, None)
    ]
    assert torch.equal(random[1], random[2])
    for one, other in itertools.combinations([random[0], random[1], random[3]], 2):
        assert one.sum() == 192 and 60 < (one & other).sum() < 132, "half of them, as of independent draws"


def test_random_activations_depend_on_the_seed_of_the_run() -> None:
    def selection(seed: int, rule: str, earlier_terms: int = 0) -> Selection:
        torch.manual_seed(seed)
        values = {"loss": "hidden_knowledge", "tokens": 3, "width": 0.5, "activation_selection": rule}
        other = validate(HiddenMSE.Settings, {"loss": "hidden_mse"})
        terms = {f"other{n}": other for n in range(earlier_terms)}
        terms["part"] = validate(HiddenKnowledge.Settings, values)
        found = build_objective(terms, SPEC, SPEC, [RTE], seed=seed).teacher_need.selection
        assert found is not None
        return found

    for rule in ("magnitude", "uniform"):
        assert selection(1, rule) == selection(2, rule) and "seed" not in selection(1, rule).describe()
    assert selection(1, "random") == selection(1, "random", earlier_terms=2) != selection(2, "random")
    described = "3 tokens by att-last-no-sep, 0.5 of the width by random (seed 7)"
    assert selection(7, "random").seed == 7 and selection(7, "random").describe() == described


@pytest.mark.parametrize(
    ("stored", "wanted", "covered"),
    [
        (Selection(9, "left", 0.5), Selection(3, "left", 0.2), True),
        (Selection(9, "left", 0.5), Selection(3, "left", 0.6), False),
        (Selection(9, "left"), Selection(10, "left"), False),
        (Selection(9, "left"), Selection(None, "left"), False),
        (Selection(None), Selection(4, "left", 0.5, "random"), True),
        (Selection(None), Selection(4, "att", scored=((1, 1),)), False),
        (Selection(9, "att", scored=((1, 1), (2, 2))), Selection(4, "att", scored=((2, 2),)), True),
        (Selection(9, "att", scored=((1, 1),)), Selection(4, "att", scored=((1, 2),)), False),
        (Selection(9, "att", scored=((1, 1),)), Selection(4, "att-no-sep", scored=((1, 1),)), False),
        (Selection(9, "left", 0.5, "uniform"), Selection(9, "left", 0.5, "uniform"), True),
        (Selection(9, "left", 0.5, "uniform"), Selection(9, "left", 0.4, "uniform"), False),
        (Selection(9, "left", 0.5, "uniform"), Selection(9, "left", 0.5), False),
        (Selection(9, "left", 0.5, "random", seed=3), Selection(4, "left", 0.5, "random", seed=3), True),
        (Selection(9, "left", 0.5, "random", seed=3), Selection(9, "left", 0.5, "random", seed=4), False),
        (Selection(9, "left", 0.5, "random"), Selection(9, "left", 0.5, "random", seed=4), False),
        (Selection(9, "left"), Selection(9, "left", 0.5, "random", seed=4), True),
    ],
)
def test_which_selections_a_stored_selection_covers(
    stored: Selection, wanted: Selection, covered: bool
) -> None:
    assert stored.covers(wanted) is covered
    offers = OutputSpec(selected=frozenset({1}), selection=stored)
    assert (not OutputSpec(selected=frozenset({1}), selection=wanted).missing_from(offers)) is covered


def test_a_smaller_selection_can_be_taken_from_a_larger_one() -> None:
    torch.manual_seed(0)
    mask = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    tokens = Tokens(mask.long(), mask, mask.long(), torch.zeros_like(mask))
    hidden, ranks = torch.randn(3, 7, 12), torch.rand(3, 7)
    large, small = (Selection(n, "att", w, scored=((1, 1),)) for n, w in ((6, 0.75), (3, 0.25)))
    direct = select_in_layer(hidden, tokens, small, ranks)
    taken = narrow_selection(select_in_layer(hidden, tokens, large, ranks), large, small)
    for name in ("valid", "values", "activations"):
        torch.testing.assert_close(getattr(taken, name), getattr(direct, name))
    assert torch.equal(taken.positions[direct.valid], direct.positions[direct.valid])


def test_the_loss_is_the_mean_over_what_is_kept() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    units = torch.zeros(2, 3, 4, dtype=torch.bool)
    units[..., :2] = True
    units[1, 0] = torch.tensor([False, True, False, True])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    squares = [
        (student[b, t, i] - teacher[b, t, i]).item() ** 2
        for b, t in ((0, 0), (0, 1), (1, 0))
        for i in range(4)
        if units[b, t, i]
    ]
    assert selected_mse(student, teacher, units, valid).item() == pytest.approx(sum(squares) / len(squares))
    assert selected_mse(student, teacher, units, torch.zeros_like(valid)).item() == 0.0
    student.requires_grad_()
    assert gradcheck(lambda h: selected_mse(h, teacher, units, valid), student)


def test_a_complete_selection_gives_the_loss_on_hidden_states() -> None:
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    everything = torch.ones(2, 3, 4, dtype=torch.bool)
    expected = masked_mse(student, teacher, mask).item()
    assert selected_mse(student, teacher, everything, mask).item() == pytest.approx(expected, rel=1e-6)


def test_terms_that_keep_different_parts_are_rejected() -> None:
    first, second = (OutputSpec(selected=frozenset({1}), selection=Selection(n, "left")) for n in (3, 4))
    with pytest.raises(UserError, match=r"different parts.*3 tokens by left.*4 tokens by left"):
        first | second
    ranked = [
        OutputSpec(selected=frozenset({n}), selection=Selection(3, "att", scored=((n, n),))) for n in (1, 2)
    ]
    joined = ranked[0] | ranked[1]
    assert joined.selection is not None and joined.selection.scored == ((1, 1), (2, 2))
    assert joined.before_selection == OutputSpec(
        hidden=frozenset({1, 2}), query=frozenset({1, 2}), key=frozenset({1, 2})
    )
