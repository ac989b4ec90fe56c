"""Static students, compared with transformers, scikit-learn, and a loop over rows."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import mtkd
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.models.encoders.encoder_registry import build_student, student_settings
from mtkd.models.encoders.static import StaticConfig, StaticEncoder, principal_components, teacher_states
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.result_cache import cache_last_result
from mtkd.recipes import load_settings
from mtkd.training.run_directory import RUN_KIND
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser

TEXTS = pa.array(["the cat sat on the mat", "a dog and the cat", "rain"])
SIZES = {"vocab_size": 30, "width": 6, "hidden_size": 8, "output_size": 5}


@pytest.fixture(scope="module")
def context(tiny_encoder: Path) -> InitContext:
    """The tiny encoder as a teacher, and a student with a vocabulary of the few words of TEXTS."""
    teacher = TransformerEncoder.pretrained(str(tiny_encoder)).eval()
    words = Tokeniser.word_level([TEXTS])
    spec = InitSpec(teacher.config, str(tiny_encoder))
    return InitContext(words, teacher, Tokeniser.load(str(tiny_encoder)), spec, texts=[TEXTS])


def encoder(**more: object) -> StaticEncoder:
    torch.manual_seed(0)
    return StaticEncoder(StaticConfig(**SIZES | more)).eval()


def texts(*rows: list[int], pad: int = 0) -> Tokens:
    """Return one text per row, padded with the id 7 to `pad` tokens more than the longest."""
    length = max(map(len, rows)) + pad
    ids = torch.tensor([row + [7] * (length - len(row)) for row in rows])
    mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
    return Tokens(ids, mask, torch.zeros_like(ids))


U = ([3, 7, 9], [4], [1, 2, 3, 4, 5])
V = ([8], [7, 7, 6, 5], [11, 12])


def naive_states(place: Path, words: list[str]) -> np.ndarray:
    """Return the mean last hidden state of each word alone in transformers, including special tokens."""
    from transformers import AutoModel, AutoTokenizer

    read, model = AutoTokenizer.from_pretrained(place), AutoModel.from_pretrained(place).eval()
    with torch.no_grad():
        return np.stack([model(**read(w, return_tensors="pt")).last_hidden_state[0].mean(0) for w in words])


def test_token_states_match_transformers(context: InitContext, tiny_encoder: Path) -> None:
    assert context.teacher is not None
    words = ["cat", "mat", "rain"]
    ids = context.tokeniser.hf.convert_tokens_to_ids(words)
    expected = naive_states(tiny_encoder, words)
    found = teacher_states(context.teacher, context)
    np.testing.assert_allclose(found[ids], expected, rtol=1e-4, atol=1e-5)
    ids = context.teacher_tokeniser.hf.convert_tokens_to_ids(words)
    shared = teacher_states(context.teacher, replace(context, tokeniser=context.teacher_tokeniser))
    assert len(shared) == 30522
    np.testing.assert_allclose(shared[ids], expected, rtol=1e-4, atol=1e-5)


def test_principal_directions_match_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    states = np.random.default_rng(0).normal(size=(40, 9)) @ np.diag(np.arange(1, 10))
    found = principal_components(torch.from_numpy(states).float(), 4).numpy()
    expected = PCA(4, svd_solver="full").fit_transform(states)
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, expected * signs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def counted_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has one item for each time that a teacher was run on all tokens."""
    runs: list[int] = []

    def counted(*given: Any) -> torch.Tensor:
        runs.append(1)
        return teacher_states(*given)

    monkeypatch.setattr("mtkd.models.encoders.static.teacher_states", counted)
    return runs


def test_the_steps_of_a_pipeline_run_the_teacher_once(context: InitContext, counted_runs: list[int]) -> None:
    runs = counted_runs
    settings = student_settings({"kind": "static", "static": {"width": 4}})
    alone = [build_student(settings, context).embeddings.weight for _ in range(2)]
    assert len(runs) == 2, "outside of a pipeline, nothing is kept in memory"
    with cache_last_result():
        together = [build_student(settings, context).embeddings.weight for _ in range(2)]
        assert len(runs) == 3
        assert all(torch.equal(weight, alone[0]) for weight in (*together, alone[1]))
        other = copy.deepcopy(context.teacher)
        assert other is not None
        with torch.no_grad():
            next(other.parameters()).add_(1)
        changed = build_student(settings, replace(context, teacher=other)).embeddings.weight
        assert len(runs) == 4 and not torch.equal(changed, alone[0])
        build_student(
            student_settings({"kind": "static", "static": {"width": 3}}), replace(context, teacher=other)
        )
        assert len(runs) == 5


def test_a_student_starts_from_weighted_vectors(context: InitContext) -> None:
    assert context.teacher is not None
    settings = student_settings({"kind": "static", "static": {"width": 4, "sif": 0.1}})
    built = build_student(settings, context)
    vectors = principal_components(teacher_states(context.teacher, context), 4)
    counts = Counter(" ".join(TEXTS.to_pylist()).split())
    for word, count in counts.items():
        token = context.tokeniser.hf.convert_tokens_to_ids(word)
        weight = 0.1 / (0.1 + count / sum(counts.values()))
        torch.testing.assert_close(built.embeddings.weight[token], vectors[token] * weight)
    ranked = build_student(settings, replace(context, texts=())).embeddings.weight / vectors
    torch.testing.assert_close(ranked[12] / ranked[5], torch.full((4,), np.log(14) / np.log(7)).float())


def test_matches_a_loop_over_rows_with_any_padding() -> None:
    made = encoder()
    table, expected = made.embeddings.weight, []
    for first, second in zip(U, V, strict=True):
        u, v = (torch.stack([table[i] for i in text]).mean(0) for text in (first, second))
        expected.append(made.mlp(torch.cat([u, v, (u - v).abs(), u * v])))
    for pad in (0, 3):
        found = made(ModelInputs(texts=(texts(*U, pad=pad), texts(*V)))).pooled
        torch.testing.assert_close(found, torch.stack(expected))
    same = made(ModelInputs(texts=(texts(*U), texts(*U)))).pooled
    torch.testing.assert_close(made(ModelInputs(texts=(texts(*U),))).pooled, same)


@pytest.mark.parametrize("trainable", [True, False])
def test_vectors_are_updated_only_if_they_are_trainable(trainable: bool) -> None:
    made = encoder(trainable=trainable)
    made(ModelInputs(texts=(texts(*U, pad=2), texts(*V)))).pooled.sum().backward()
    grad = made.embeddings.weight.grad
    if not trainable:
        assert grad is None
        return
    assert isinstance(grad, Tensor) and grad[3].any() and not grad[20].any()


def test_vectors_wider_than_those_of_the_teacher_are_rejected(context: InitContext) -> None:
    with pytest.raises(UserError, match="width=17 is wider than the teacher") as refused:
        build_student(student_settings({"kind": "static", "static": {"width": 17}}), context)
    assert "use `student.static.width=16`, or" in (refused.value.hint or "")


def test_token_vectors_are_cached_and_damaged_ones_are_computed_again(
    context: InitContext, counted_runs: list[int], tmp_path: Path
) -> None:
    settings = student_settings({"kind": "static", "static": {"width": 4}})
    cached = replace(context, cache=tmp_path)

    def vectors(given: InitContext = cached) -> torch.Tensor:
        return build_student(settings, given).embeddings.weight

    first = vectors()
    assert torch.equal(vectors(), first) and len(counted_runs) == 1
    assert torch.equal(vectors(context), first) and len(counted_runs) == 2
    (file,) = tmp_path.glob("token-vectors-*/vectors.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert torch.equal(vectors(), first) and len(counted_runs) == 3, "the digest has changed"
    assert torch.equal(vectors(), first) and len(counted_runs) == 3, "the damaged file was replaced"
    vectors(replace(cached, tokeniser=context.teacher_tokeniser))
    assert len(counted_runs) == 4, "another vocabulary"
    (tmp_path / "file").touch()
    assert torch.equal(vectors(replace(context, cache=tmp_path / "file")), first), "it cannot be written"


@pytest.mark.parametrize("kind", ["run", "encoder", "checkpoint"])
def test_the_token_vectors_of_a_teacher_are_computed_once_for_all_runs(
    kind: str,
    counted_runs: list[int],
    tiny_teacher: Path,
    tiny_encoder: Path,
    save_checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "cache"))
    has_run = kind == "run"
    teacher = tiny_encoder
    if has_run:
        of_other_tests = shutil.ignore_patterns("token-vectors-*")
        teacher = shutil.copytree(tiny_teacher, tmp_path / "teacher", ignore=of_other_tests)
    elif kind == "checkpoint":
        teacher = save_checkpoint("Bert", id2label={0: "negative", 1: "positive"})
    for seed in (0, 1):
        for supervision in ("labels",) if kind == "encoder" else ("teacher", "labels"):
            sets = {
                "student.static.width": 8,
                "train.steps": 1,
                "train.seed": seed,
                "supervision": supervision,
            }
            settings = load_settings("static", "distill", sets, "sst2")
            out = tmp_path / f"{supervision}-{seed}"
            distill(Request("pocket", "sst2", out, 16, 8), settings, str(teacher))
            assert not list(out.glob("token-vectors-*"))
    assert len(counted_runs) == 1
    (file,) = (teacher if has_run else tmp_path / "cache").glob("token-vectors-*/vectors.safetensors")
    if has_run:
        assert RUN_KIND.ownership(teacher)(str(file.relative_to(teacher))), "--overwrite removes it"
        assert not mtkd.verify(teacher).damaged


def test_the_teacher_is_checked_before_its_token_vectors_are_computed(
    counted_runs: list[int], tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise UserError("the outputs are in another order")

    monkeypatch.setattr("mtkd.jobs.distillation.distill_tasks.check_teacher", refuse)
    settings = load_settings("static", "distill", {"student.static.width": 16}, "sst2")
    with pytest.raises(UserError, match="another order"):
        distill(Request("pocket", "sst2", tmp_path / "run", 16, 8), settings, str(tiny_teacher))
    assert not counted_runs


def test_a_teacher_is_needed_unless_vectors_are_random(context: InitContext) -> None:
    alone = InitContext(context.tokeniser, None, context.tokeniser, InitSpec(None, None))
    with pytest.raises(UserError, match="needs a teacher"):
        build_student(student_settings({"kind": "static"}), alone)
    settings = student_settings({"kind": "static", "static": {"init": "random", "width": 400}})
    assert build_student(settings, alone).embeddings.weight.shape == (context.tokeniser.vocab_size, 400)


def test_the_recipe_beats_constant_predictions(tiny_teacher: Path, tmp_path: Path) -> None:
    sets = {"student.static.width": 16, "student.head_hidden_size": 0, "terms.logits.weight": 0}
    sets |= {"train.epochs": 10, "train.batch_size": 32, "train.lr": 1e-2}
    settings = load_settings("static", "distill", sets, "sst2")
    run = distill(Request("pocket", "sst2", tmp_path / "run", 2000, 400), settings, str(tiny_teacher))
    scores = run.record["scores"]["sst2/validation"]
    assert scores["primary"] > scores["majority"] + 0.05
    model = MultiTaskModel.load(tmp_path / "run")
    inputs = ModelInputs(texts=(texts(*U),))
    again = StaticEncoder(StaticConfig(**model.encoder.config.model_dump())).eval()
    again.load_weights(model.encoder.state_dict())
    assert torch.equal(model.encoder(inputs).pooled, again(inputs).pooled)
