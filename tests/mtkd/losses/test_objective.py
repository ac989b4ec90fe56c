"""Loss terms of recipes: incompatible terms, the outputs that terms need, and their sum."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtkd.losses.contrastive import sample_contrastive
from mtkd.losses.emd import emd_flow
from mtkd.losses.hidden import masked_mse
from mtkd.losses.layer_maps import layer_pairs, named_map_pairs
from mtkd.losses.logits import Labels
from mtkd.losses.loss_term import LossTerm, TermInput
from mtkd.losses.objective import Objective, build_objective
from mtkd.losses.relations import regroup_heads, relation_kl
from mtkd.losses.term_settings import value_at
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.outputs import BY_LAYER, EncoderSpec, ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.batching import Batch, ModelInputs, Tokens

RTE, STSB = TASKS["rte"], TASKS["stsb"]


def spec_of(layers: int, width: int, heads: int, family: str = "bert") -> EncoderSpec:
    states, every = frozenset(range(layers + 1)), frozenset(range(1, layers + 1))
    offers = OutputSpec(True, True, True, states, states, every, every, every, every, every)
    return EncoderSpec(family, layers, width, width, heads, width, offers)


STUDENT, TEACHER = spec_of(2, 12, 2), spec_of(4, 24, 4)
LSTM = BiLSTMConfig(vocab_size=10).spec


def objective(
    student: EncoderSpec = STUDENT, teacher: EncoderSpec = TEACHER, task=RTE, **terms: dict
) -> Objective:
    settings = validate(DistillSettings, {"name": "", "summary": "", "source": "", "terms": terms})
    return build_objective(settings.terms, student, teacher, [task])


@pytest.mark.parametrize(
    ("name", "student", "teacher", "expected"),
    [
        ("uniform", 4, 12, [3, 6, 9, 12]),
        ("uniform", 4, 6, [2, 3, 5, 6]),
        ("uniform", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("top:10", 4, 12, [3, 5, 8, 10]),
        ("skip", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("skip", 4, 6, [1, 2, 3, 4]),
        ("last", 3, 12, [10, 11, 12]),
        ("first", 3, 12, [1, 2, 3]),
    ],
)
def test_layer_maps_give_the_expected_pairs(
    name: str, student: int, teacher: int, expected: list[int]
) -> None:
    assert named_map_pairs(name, student, teacher) == list(enumerate(expected, 1))


@pytest.mark.parametrize(
    ("family", "layers", "expected"),
    [("bert", 12, 12), ("bert", 24, 21), ("roberta", 24, 19), ("xlm-roberta", 24, 19), ("electra", 6, 6)],
)
def test_the_teacher_layer_of_minilmv2(family: str, layers: int, expected: int) -> None:
    assert layer_pairs("minilmv2", STUDENT, spec_of(layers, 24, 4, family)) == [(2, expected)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("top:5", "'top:5' does not fit 2 student layers and 4 teacher layers"),
        ([[1, 5]], "layer 5 of the teacher, which has 4"),
        ([[3, 4]], "layer 3 of the student, which has 2"),
    ],
)
def test_layer_maps_reject_missing_layers(spec: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective(h={"loss": "hidden_mse", "layer_map": spec})


@pytest.mark.parametrize(
    ("student", "task", "term", "message"),
    [
        (
            STUDENT,
            RTE,
            {"loss": "relation", "relation_heads": 5},
            "5 relation heads, which does not divide the student",
        ),
        (
            STUDENT,
            RTE,
            {"loss": "relation", "relation_heads": 3, "regrouping": "average"},
            "does not divide the teacher's 4 attention heads",
        ),
        (STUDENT, RTE, {"loss": "attention_score_mse"}, "the student has 2 heads and the teacher 4"),
        (STUDENT, RTE, {"loss": "cls_mse"}, r"vectors of width 12 \(student\) and 24 \(teacher\)"),
        (STUDENT, STSB, {"loss": "sample_contrastive"}, "contrasts classes, but 'stsb' has scores"),
        (LSTM, RTE, {"loss": "relation"}, "bilstm-biattention.* neither layers nor attention heads"),
        (LSTM, RTE, {"loss": "sample_similarity"}, "neither layers nor attention heads"),
        (STUDENT, RTE, {"loss": "cls_mse", "layer_map": "emd"}, "does not support layer_map=emd"),
        (spec_of(1, 24, 4), RTE, {"loss": "cls_mse"}, "leaves out the student's last layer"),
    ],
)
def test_incompatible_terms_are_rejected(student: EncoderSpec, task, term: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective(student, task=task, t=term)


def test_outputs_that_a_teacher_lacks_are_named() -> None:
    blind = EncoderSpec("mpnet", 4, 24, 24, 4, 24, OutputSpec(pooled=True, hidden=frozenset(range(5))))
    with pytest.raises(UserError, match=r"'r' needs keys of layer 4 from the teacher \(mpnet\)"):
        objective(teacher=blind, r={"loss": "relation", "relations": ["k-k"]})


def test_a_bi_encoder_that_lacks_pooled_vectors_is_named() -> None:
    bi_encoder = replace(TEACHER, offers=replace(TEACHER.offers, pooled=False))
    term = {"loss": "sample_similarity", "row_vector": "pooled"}
    with pytest.raises(UserError, match=r"the teacher \(bert\) is a bi-encoder") as caught:
        objective(teacher=bi_encoder, rows=term)
    assert "refine it with `settings={'pairs': 'cross-encoder'}`" in str(caught.value.hint)
    with pytest.raises(UserError, match=r"the student \(bert\) is a bi-encoder") as caught:
        objective(bi_encoder, rows=term)
    assert "use `student.transformer.pairs=cross-encoder`" in str(caught.value.hint)


@pytest.mark.parametrize("layers", [(1, 3), [1, 3], {1, 3}, range(1, 4, 2), np.array([1, 3])])
def test_layers_are_any_iterable_of_numbers(layers: Any) -> None:
    spec = OutputSpec(hidden=layers)
    assert spec.hidden == frozenset({1, 3}) and spec.missing_from(TEACHER.offers) == []
    assert hash(spec) == hash(OutputSpec(hidden=frozenset({1, 3})))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hidden": 3},
            "hidden=3 is not valid in an OutputSpec\n  expected: layer numbers, such as hidden={3}",
        ),
        ({"cls": "12"}, "cls='12' is not valid"),
        ({"mean": [-1]}, "mean=[-1] is not valid"),
        ({"selected": [1.5]}, "selected=[1.5] is not valid"),
        ({"logits": {1}}, "logits={1} is not valid in an OutputSpec\n  expected: True or False"),
    ],
)
def test_invalid_fields_of_an_output_specification_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        OutputSpec(**fields)


def test_only_outputs_that_the_terms_need_are_requested() -> None:
    found = objective(
        a={"loss": "relation", "relations": ["q-k", "o-o"]},
        b={"loss": "hidden_mse", "layer_map": [[1, 3]]},
        c={"loss": "cls_mse", "projection": "shared"},
        d={"loss": "soft_labels"},
    )
    last, first = frozenset({2}), frozenset({1})
    assert found.student_need == OutputSpec(True, cls=first, hidden=first, query=last, key=last, context=last)
    four = frozenset({4})
    assert found.teacher_need == OutputSpec(
        True, cls=frozenset({2}), hidden=frozenset({3}), query=four, key=four, context=four
    )


def joint_batch(lengths: list[int], labels: list[float]) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = mask.long()
    inputs = ModelInputs(joined=Tokens(ids, mask, torch.zeros_like(ids)))
    return Batch("rte", np.arange(len(lengths)), torch.tensor(labels), None, inputs, inputs)


def outputs(of: EncoderSpec, batch: Batch, seed: int) -> ModelOutput:
    """Random outputs of every kind and layer."""
    assert batch.inputs.joined is not None
    mask = batch.inputs.joined.mask
    draw = torch.Generator().manual_seed(seed)
    sizes = {
        "cls": (len(mask), of.hidden_size),
        "scores": (len(mask), of.heads, mask.shape[1], mask.shape[1]),
    }
    every = {
        kind: {
            layer: torch.randn(sizes.get(kind, (*mask.shape, of.hidden_size)), generator=draw)
            for layer in sorted(getattr(of.offers, kind))
        }
        for kind in BY_LAYER
    }
    logits, pooled = (
        torch.randn(len(mask), 2, generator=draw),
        torch.randn(len(mask), of.hidden_size, generator=draw),
    )
    return ModelOutput(logits=logits, pooled=pooled, mask=mask, **every)


def value_of(found: Objective, batch: Batch, student: EncoderSpec = STUDENT, progress: float = 0.0) -> Tensor:
    units = found.num_items(RTE, batch)
    return found(RTE, batch, outputs(student, batch, 1), outputs(TEACHER, batch, 2), units, progress)[0]


BATCH = joint_batch([4, 2, 3], [0.0, 1.0, 0.0])


def test_relations_are_summed_over_pairs_and_layers() -> None:
    found = objective(
        r={"loss": "relation", "relations": ["q-q", "v-o"], "layer_map": "uniform", "relation_heads": 4}
    )
    mine, theirs = outputs(STUDENT, BATCH, 1), outputs(TEACHER, BATCH, 2)
    expected = 0.0
    for n, m in ((1, 2), (2, 4)):
        q, v, o = mine.query[n], mine.value[n], mine.context[n]
        expected += relation_kl(q, q, theirs.query[m], theirs.query[m], mine.mask, 4).item()
        expected += relation_kl(v, o, theirs.value[m], theirs.context[m], mine.mask, 4).item()
    assert value_of(found, BATCH).item() == pytest.approx(expected, rel=1e-5)


def test_projections_are_shared_and_not_part_of_the_model() -> None:
    found = objective(h={"loss": "hidden_mse"}, each={"loss": "hidden_mse", "projection": "per-layer"})
    names = [name for name, _ in found.named_parameters()]
    assert names == [
        "terms.h.projection.maps.all.weight",
        "terms.each.projection.maps.1.weight",
        "terms.each.projection.maps.2.weight",
    ]
    mine, theirs = outputs(STUDENT, BATCH, 1), outputs(TEACHER, BATCH, 2)
    w = found.terms["h"].projection.maps["all"].weight
    expected = sum(
        masked_mse(mine.hidden[n] @ w.T, theirs.hidden[m], mine.mask).item() for n, m in ((1, 2), (2, 4))
    )
    only = objective(h={"loss": "hidden_mse"})
    only.load_state_dict({"terms.h.projection.maps.all.weight": w.detach()})
    assert value_of(only, BATCH).item() == pytest.approx(expected, rel=1e-5)


def test_all_layer_pairs_are_weighted_by_the_flow() -> None:
    found = objective(h={"loss": "hidden_mse", "layer_map": "emd"})
    mine, theirs = outputs(STUDENT, BATCH, 1), outputs(TEACHER, BATCH, 2)
    w = found.terms["h"].projection.maps["all"].weight
    cost = torch.tensor(
        [
            [masked_mse(mine.hidden[n] @ w.T, theirs.hidden[m], mine.mask).item() for m in range(1, 5)]
            for n in (1, 2)
        ]
    )
    expected = (emd_flow(cost) * cost).sum().item()
    assert value_of(found, BATCH).item() == pytest.approx(expected, rel=1e-4)
    weights = found.terms["h"].teacher_weights
    assert weights.sum() == pytest.approx(1) and weights.std() > 0, "the weights follow the cost"
    assert "terms.h.teacher_weights" in found.state_dict(), "and are kept in checkpoints"


@pytest.mark.parametrize(
    "term", [{"loss": "relation", "relations": ["o-o"]}, {"loss": "hidden_cosine", "projection": "shared"}]
)
def test_every_layered_term_can_be_weighted_by_the_flow(term: dict) -> None:
    found = objective(t={**term, "layer_map": "emd"})
    every = objective(t={**term, "layer_map": [[n, m] for n in (1, 2) for m in range(1, 5)]})
    weights = {k: v for k, v in found.state_dict().items() if "projection" in k}
    every.load_state_dict(weights)
    assert 0 < value_of(found, BATCH).item() < value_of(every, BATCH).item() / 8, "at most the mean of all"


def test_heads_are_averaged_or_sampled() -> None:
    vectors = torch.arange(8.0).view(1, 1, 8)  # four heads of two
    assert regroup_heads(vectors, 4, 2, "concat-split") is vectors
    assert regroup_heads(vectors, 4, 2, "average").flatten().tolist() == [1, 2, 5, 6]
    picked = regroup_heads(vectors, 4, 2, "random", torch.tensor([1, 0]))
    assert picked.flatten().tolist() == [2, 3, 4, 5]


def test_the_sampled_heads_depend_on_the_seed() -> None:
    def picks(seed: int) -> list[int]:
        torch.manual_seed(seed)
        found = objective(
            o={"loss": "relation", "relations": ["o-o"], "relation_heads": 1, "regrouping": "random"}
        )
        assert "terms.o.picks" in found.state_dict(), "a resumed run keeps them"
        return found.terms["o"].picks.tolist()

    drawn = [picks(seed) for seed in range(20)]
    assert drawn == [picks(seed) for seed in range(20)]
    assert {tuple(pick) for pick in drawn} == {(head,) for head in range(TEACHER.heads)}


def test_scores_are_binned_for_the_contrastive_loss() -> None:
    found = objective(task=STSB, sc={"loss": "sample_contrastive", "bins": 5})
    batch = joint_batch([2, 2, 2, 2], [0.0, 0.9, 4.2, 5.0])
    mine, theirs = outputs(STUDENT, batch, 1), outputs(TEACHER, batch, 2)
    projected = mine.cls[2] @ found.terms["sc"].projection.maps["all"].weight.T
    expected = sample_contrastive(projected, theirs.cls[4], torch.tensor([0, 0, 4, 4]))
    got = found(STSB, batch, mine, theirs, found.num_items(STSB, batch))[0]
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_batch_of_one_row_has_no_relations_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    found = objective(s={"loss": "sample_similarity"}, c={"loss": "sample_contrastive"})
    one = joint_batch([3], [1.0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert value_of(found, one).item() == 0.0
    assert len(caplog.records) == 2 and "a batch of one row" in caplog.text


def test_terms_that_read_nothing_of_the_student_are_rejected() -> None:
    class TermWithoutNeeds(LossTerm):
        def forward(self, inputs: TermInput) -> Tensor:
            return torch.zeros(())

    with pytest.raises(UserError, match="no loss needs any output of the student: 'TermWithoutNeeds'"):
        build_objective([TermWithoutNeeds()], STUDENT, TEACHER, [RTE])


def test_a_term_applies_to_its_task_types() -> None:
    found = objective(
        task=STSB,
        c={"loss": "sample_contrastive", "task_types": ["classify"]},
        s={"loss": "sample_similarity"},
    )
    assert found.num_items(STSB, BATCH) == [0, 3] and found.num_items(RTE, BATCH) == [3, 3]


def test_weights_and_temperatures_change_over_the_steps() -> None:
    points = [(0.0, 0.0), (0.5, 0.0), (0.5, 2.0), (1.0, 4.0)]
    assert [value_at(points, share) for share in (0.0, 0.49, 0.5, 0.75, 1.0)] == [0, 0, 2, 3, 4]
    late = objective(k={"loss": "soft_labels", "weight": points})
    plain = objective(k={"loss": "soft_labels"})
    assert value_of(late, BATCH, progress=0.4).item() == 0.0
    assert value_of(late, BATCH, progress=0.75).item() == pytest.approx(3 * value_of(plain, BATCH).item())
    cooling = objective(k={"loss": "soft_labels", "temperature": [(0.0, 8.0), (1.0, 1.0)]})
    assert value_of(cooling, BATCH, progress=1.0).item() == pytest.approx(value_of(plain, BATCH).item())
    assert value_of(cooling, BATCH).item() != pytest.approx(value_of(plain, BATCH).item())
    with pytest.raises(UserError, match="fractions rising"):
        objective(k={"loss": "soft_labels", "weight": [(0.5, 1.0), (0.2, 1.0)]})


def test_an_lstm_can_use_losses_on_relations_between_rows() -> None:
    found = objective(
        LSTM,
        s={"loss": "sample_similarity", "row_vector": "pooled"},
        c={"loss": "sample_contrastive", "row_vector": "pooled"},
    )
    student = ModelOutput(pooled=torch.randn(3, LSTM.pooled_size, requires_grad=True))
    loss, values = found(RTE, BATCH, student, outputs(TEACHER, BATCH, 2), found.num_items(RTE, BATCH))
    loss.backward()
    assert (values > 0).all() and student.pooled is not None and student.pooled.grad is not None
    assert TermInput(RTE, BATCH, student, None, num_items=3).progress == 0.0


def test_names_of_terms_given_as_objects_are_checked() -> None:
    with pytest.raises(UserError, match="'forward' is not valid"):
        build_objective({"forward": Labels()}, STUDENT, None, [RTE])
