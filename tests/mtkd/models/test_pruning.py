"""Students that are pruned from their teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.pruning import FactorisedEmbedding, Importance, layer_parts, prune_into
from mtkd.recipes import load_settings
from mtkd.training.importance import measure_importance
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batching import Collator, ModelInputs, Tokens
from tasks.tokens.encoding import Encoded

FAMILIES = {
    "bert": {"num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 10},
    "roberta": {"num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 10},
    "electra": {"num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 10},
    "distilbert": {"n_layers": 2, "dim": 12, "n_heads": 3, "hidden_dim": 10},
}


def inputs() -> ModelInputs:
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    ids = torch.tensor([[5, 9, 3, 8, 2], [5, 4, 2, 1, 1]])
    return ModelInputs(joined=Tokens(ids, mask, torch.zeros_like(ids)))


def encoder(family: str, **more: int) -> TransformerEncoder:
    torch.manual_seed(0)
    hf = {"model_type": family, "vocab_size": 50, "max_position_embeddings": 40, **FAMILIES[family]}
    return TransformerEncoder(TransformerConfig(hf={**hf, **more}, pooling="mean")).eval()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_pruned_student_equals_its_teacher_with_the_pruned_parts_zeroed(family: str) -> None:
    """In the teacher, the weights that read the pruned parts are set to zero."""
    teacher = encoder(family)
    heads = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.3]])
    units = torch.stack([torch.arange(10.0), -torch.arange(10.0)])
    importance = Importance(torch.ones(2), heads, units)
    config = teacher.config
    heads_key, width_key = (
        ("n_heads", "hidden_dim")
        if family == "distilbert"
        else (
            "num_attention_heads",
            "intermediate_size",
        )
    )
    small = TransformerConfig(hf={**config.hf, heads_key: 2, width_key: 4}, pooling="mean", head_size=4)
    student = TransformerEncoder(small).eval()
    assert student.spec.attention_size == 8 and student.spec.heads == 2
    prune_into(student.body, 2, teacher.body, 2, [1, 2], importance, 4)

    for layer, (parts, dead_head) in enumerate(zip(layer_parts(teacher.body, 2), (0, 1), strict=True)):
        parts["output"][1].weight.data[:, dead_head * 4 : dead_head * 4 + 4] = 0
        dead = units[layer].argsort()[:6]
        parts["down"][1].weight.data[:, dead] = 0
    found, expected = (model(inputs()).pooled for model in (student, teacher))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_embeddings_are_the_truncated_svd() -> None:
    torch.manual_seed(0)
    table = torch.randn(30, 8)
    small = FactorisedEmbedding(30, 3, 8)
    small.factorise_from(table)
    u, s, v = torch.linalg.svd(table, full_matrices=False)
    expected = u[:, :3] @ torch.diag(s[:3]) @ v[:3]
    torch.testing.assert_close(small.weight, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(small(torch.tensor([4])), expected[4:5], atol=1e-4, rtol=0)


def test_importance_approximates_the_change_of_the_loss_to_first_order(tiny_teacher: Path) -> None:
    """Compared with the loss after scaling a part down by a little."""
    teacher = MultiTaskModel.load(tiny_teacher)
    (rte,) = resolve("rte")
    rows = Encoded.encode(load_rows(open_data("pocket"), rte, "train", 8), teacher.tokeniser)
    importance = measure_importance(teacher, {"rte": rte}, {"rte": rows}, batch_size=8)

    double = teacher.double()
    batch = Collator(teacher.reader)(rows, torch.arange(8).numpy())
    parts = layer_parts(double.encoder.body, 3)  # type: ignore[union-attr]

    def loss() -> float:
        with torch.no_grad():
            outputs = double(batch.inputs, "rte")
            return float(torch.nn.functional.cross_entropy(outputs.logits, batch.labels.long()))

    step = 1e-5
    for layer, head in ((0, 1), (2, 0)):
        weight = parts[layer]["output"][1].weight.data
        before = loss()
        weight[:, head * 8 : head * 8 + 8] *= 1 - step
        change = abs(loss() - before) / step
        weight[:, head * 8 : head * 8 + 8] /= 1 - step
        assert importance.heads[layer, head].item() == pytest.approx(change, rel=2e-2)


def test_the_seed_chooses_the_rows_from_which_the_importance_is_measured(
    tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.training.importance._ROWS", 4)
    teacher = MultiTaskModel.load(tiny_teacher)
    (rte,) = resolve("rte")
    rows = Encoded.encode(load_rows(open_data("pocket"), rte, "train", 24), teacher.tokeniser)
    one, other, again = (
        measure_importance(teacher, {"rte": rte}, {"rte": rows}, seed).units for seed in (0, 1, 0)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_recipe_prunes_trains_saves_and_loads(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def measured(teacher: Any, tasks: Any, data: Any, seed: int) -> Any:
        seeds.append(seed)
        return measure_importance(teacher, tasks, data, seed)

    monkeypatch.setattr("mtkd.jobs.distillation.distill_tasks.measure_importance", measured)
    sizes = {
        "student.max_length": 24,
        "student.transformer.layers": 2,
        "student.transformer.heads": 1,
        "student.transformer.intermediate_size": 8,
        "student.transformer.embedding_size": 4,
        "train.epochs": 1,
        "train.batch_size": 8,
    }
    settings = load_settings("hsk-rosita-6", "distill", {**sizes, "train.seed": 3})
    out = tmp_path / "run"
    run = distill(Request("pocket", "rte,stsb", out, 24, 16), settings, str(tiny_teacher))
    assert seeds == [3]
    assert set(run.record["scores"]) == {"rte/validation", "stsb/validation"}
    student = MultiTaskModel.load(out)
    assert student.encoder.spec.attention_size == 8 and student.encoder.spec.heads == 1
    assert count_parameters(student).embeddings == 30522 * 4 + 4 * 16
    again = load_settings(
        "mkd-transformer",
        "distill",
        {"student.transformer.init": str(out), "student.transformer.layers": 2, "train.epochs": 1},
    )
    distill(Request("pocket", "rte", tmp_path / "next", 16, 16), again, str(tiny_teacher))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student.transformer.init": "random"}, "prune=true cannot be combined with init='random'"),
        ({"student.transformer.heads": 4}, "cannot have 4 attention heads"),
        ({"student.transformer.intermediate_size": 99}, "cannot have 99 feed-forward units"),
        ({"student.transformer.layers": 5}, "cannot have 5 layers"),
    ],
)
def test_invalid_pruned_sizes_are_errors(
    changes: dict, message: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    sizes = {"student.transformer.layers": 2, "student.transformer.intermediate_size": 8}
    sizes |= {"student.transformer.embedding_size": 4, "student.max_length": 24}
    settings = load_settings("hsk-rosita-6", "distill", {**sizes, **changes})
    with pytest.raises(UserError, match=message):
        distill(Request("pocket", "rte", tmp_path / "run", 16, 16), settings, str(tiny_teacher))
