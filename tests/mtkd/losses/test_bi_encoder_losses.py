"""Losses of bi-encoders: the loss of a row of two texts equals that of the two texts, encoded separately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

from mtkd.losses.layered import pair_mask, text_mask_of
from mtkd.losses.loss_term import TermInput
from mtkd.losses.objective import build_objective
from mtkd.losses.pooled import pool_mask, pooled_attention_score_mse
from mtkd.losses.relations import relation_kl
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from mtkd.teachers.hidden_selection import cls_attention
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.tokens.batching import Batch, Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

STSB = TASKS["stsb"]
LAYERS = {"layer_map": [[1, 2], [2, 1]]}
TERMS: dict[str, dict[str, Any]] = {
    "scores": {"loss": "attention_score_mse", **LAYERS},
    "attention": {"loss": "attention_kl", **LAYERS},
    "pooled scores": {"loss": "pooled_attention_score_mse", **LAYERS},
    "relations": {"loss": "relation", "relations": ["q-q", "q-k", "o-h"], "relation_heads": 4, **LAYERS},
    "embeddings": {"loss": "token_similarity"},
    "hidden": {"loss": "hidden_mse", "projection": "none", **LAYERS},
}


class Pairs(NamedTuple):
    """Two bi-encoders, and rows of two texts, as pairs and as single texts."""

    student: TransformerEncoder
    teacher: TransformerEncoder
    pairs: Batch
    singles: list[Batch]


@pytest.fixture
def read(save_checkpoint: Callable[..., Path]) -> Pairs:
    """Rows of up to 64 tokens, and encoders in float64."""
    folders = [str(save_checkpoint("Bert", name, seed=seed)) for seed, name in enumerate(("s", "t"))]
    encoders = (TransformerEncoder.pretrained(folder, "mean", pairs="bi-encoder") for folder in folders)
    student, teacher = (encoder.double().eval() for encoder in encoders)
    rows = load_rows(open_data("pocket"), STSB, "train", 6)
    short = tuple(
        pc.utf8_slice_codeunits(text, 0, stop) for text, stop in zip(rows.texts, (30, 9), strict=True)
    )
    rows, tokeniser = replace(rows, texts=short), Tokeniser.load(folders[0])

    def batch(texts: tuple[Any, ...]) -> Batch:
        encoded = Encoded.encode(replace(rows, texts=texts), tokeniser)
        reader = Reader(tokeniser, "side-by-side", 64)
        return Collator(reader, reader)(encoded, np.arange(len(rows)))

    return Pairs(student, teacher, batch(rows.texts), [batch((text,)) for text in rows.texts])


def outputs(encoder: TransformerEncoder, batch: Batch, need: OutputSpec) -> ModelOutput:
    return ModelOutput(**vars(encoder(batch.inputs, need)))


@pytest.mark.parametrize("name", TERMS)
def test_the_loss_of_a_pair_equals_that_of_its_single_texts(name: str, read: Pairs) -> None:
    """The mean over the tokens of both texts, of values and gradients."""
    values = {"name": "", "summary": "", "source": "", "terms": {"t": TERMS[name]}}
    terms = validate(DistillSettings, values).terms
    objective = build_objective(terms, read.student.spec, read.teacher.spec, [STSB]).eval()

    def loss_and_gradient(batch: Batch) -> torch.Tensor:
        """The sum over tokens, and its gradient."""
        student, teacher = (
            outputs(encoder, batch, need)
            for encoder, need in (
                (read.student, objective.student_need),
                (read.teacher, objective.teacher_need),
            )
        )
        loss = objective(STSB, batch, student, teacher, [1])[0]
        weight = read.student.embeddings.weight
        return torch.cat([loss.detach()[None], torch.autograd.grad(loss, weight)[0].flatten()])

    of_pairs, *of_singles = (objective.num_items(STSB, batch)[0] for batch in (read.pairs, *read.singles))
    assert of_pairs == sum(of_singles)
    alone = sum(map(loss_and_gradient, read.singles))
    torch.testing.assert_close(loss_and_gradient(read.pairs), alone, rtol=1e-6, atol=1e-6)


def test_tokens_are_ranked_by_attention_within_their_text(read: Pairs) -> None:
    two = frozenset({2})
    need = OutputSpec(query=two, key=two)
    with torch.inference_mode():
        pair = outputs(read.teacher, read.pairs, need)
        found = cls_attention(pair.query[2], pair.key[2], pair.text_numbers, 2)
        for number, batch in enumerate(read.singles, 1):
            text = outputs(read.teacher, batch, need)
            assert text.text_numbers is None and text.mask is not None
            alone = cls_attention(text.query[2], text.key[2], text.mask, 2)
            torch.testing.assert_close(found[pair.text_numbers == number], alone[text.mask])
            torch.testing.assert_close(alone.sum(1), torch.ones(6))
    assert not found[pair.text_numbers == 0].any()


def test_the_pair_mask_keeps_tokens_that_attend_to_each_other_in_both_models() -> None:
    student, teacher = torch.tensor([[1, 1, 2, 2, 0]]), torch.tensor([[1, 2, 2, 2, 0]])
    mask = student > 0

    def visible(of_student: Any, of_teacher: Any) -> torch.Tensor:
        models = (ModelOutput(mask=mask, text_numbers=numbers) for numbers in (of_student, of_teacher))
        return pair_mask(text_mask_of(TermInput(STSB, None, *models, num_items=4)))[0, 0]  # type: ignore[arg-type]

    every = torch.zeros(5, 5, dtype=torch.bool)
    every[:4, :4] = True
    assert torch.equal(visible(None, None), every)
    for numbers in (student, teacher):
        same = numbers[0][:, None] == numbers[0]
        assert torch.equal(visible(numbers, None), every & same)
        assert torch.equal(visible(None, numbers), every & same)
    both = (student[0][:, None] == student[0]) & (teacher[0][:, None] == teacher[0])
    assert torch.equal(visible(student, teacher), every & both)


def test_relations_within_texts_agree_on_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtkd.losses import relation_gradient

    torch.manual_seed(0)
    numbers = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 2, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0]])
    student, teacher = torch.randn(3, 6, 4, requires_grad=True), torch.randn(3, 6, 4)
    expected = relation_kl(student, student, teacher, teacher, numbers, 2)
    (gradient,) = torch.autograd.grad(expected, student)
    one = [
        relation_kl(student, student, teacher, teacher, numbers == number, 2) * (numbers == number).sum()
        for number in (1, 2)
    ]
    assert expected.item() == pytest.approx((sum(one) / 9).item(), rel=1e-5)
    monkeypatch.setattr(relation_gradient, "_by_example", relation_gradient._by_chunk)
    monkeypatch.setattr(relation_gradient, "GPU_CHUNK", 100)  # one example at a time
    found = relation_kl(student, student, teacher, teacher, numbers, 2)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found, student)[0], gradient)


def test_windows_are_compared_if_any_of_their_tokens_attend_to_each_other() -> None:
    """Against a loop, with a window that holds tokens of both texts."""
    torch.manual_seed(0)
    numbers, stride = torch.tensor([[1, 1, 1, 2, 2, 2, 0], [1, 1, 2, 2, 0, 0, 0]]), 2
    student, teacher = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 7, 7)
    per_query = []
    for b, head, i in np.ndindex(2, 3, 4):
        squares = []
        for j in range(4):
            seen = [
                teacher[b, head, q, k].item()
                for q in range(2 * i, min(2 * i + 2, 7))
                for k in range(2 * j, min(2 * j + 2, 7))
                if numbers[b, q] and numbers[b, q] == numbers[b, k]
            ]
            squares += [(student[b, head, i, j].item() - max(seen)) ** 2] if seen else []
        per_query += [sum(squares) / len(squares)] if squares else []
    assert len(per_query) == 3 * int(pool_mask(numbers.bool(), stride).sum())
    found = pooled_attention_score_mse(student, teacher, numbers, stride).item()
    assert found == pytest.approx(sum(per_query) / len(per_query), rel=1e-5)
