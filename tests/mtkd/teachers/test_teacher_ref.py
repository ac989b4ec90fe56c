"""Teachers by name: what is known before weights are loaded, loading, and the size of models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import read_description
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens

IDS = torch.tensor([[101, 2023, 2003, 102], [101, 2748, 102, 0]])
MASK = IDS != 0


def test_an_encoder_is_loaded_without_heads_and_reads_as_transformers_does(tiny_encoder: Path) -> None:
    from transformers import AutoModel

    found = TeacherRef.find(str(tiny_encoder), heads=False)
    assert found.saved is None and found.init_spec.encoder == str(tiny_encoder)
    model = found.load(32)
    assert model.info.max_length == 32 and not model.tasks
    tokens = Tokens(IDS, MASK, torch.zeros_like(IDS))
    reference = AutoModel.from_pretrained(tiny_encoder, attn_implementation="eager").eval()
    with torch.no_grad():
        states = model.eval().encoder.body(input_ids=IDS, attention_mask=MASK.long()).last_hidden_state
        expected = reference(input_ids=IDS, attention_mask=MASK.long()).last_hidden_state
        assert model.encoder(ModelInputs(joined=tokens), model.encoder.offers).hidden
    torch.testing.assert_close(states[MASK], expected[MASK], atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="mtkd model"):
        TeacherRef.find(str(tiny_encoder), heads=True)


def test_a_run_is_loaded_with_its_heads_and_truncates_to_a_length(tiny_teacher: Path) -> None:
    found = TeacherRef.find(str(tiny_teacher), heads=True)
    model, direct = found.load(16), MultiTaskModel.load(tiny_teacher)
    assert found.saved is not None and list(model.tasks) == ["sst2", "rte", "stsb"]
    assert (model.info.max_length, found.load(None).info.max_length) == (16, direct.info.max_length)
    for name, weight in direct.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])


@pytest.mark.parametrize("kind", ["encoder", "run"])
def test_the_digest_is_of_the_weights_not_of_the_path(
    kind: str, tiny_encoder: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    original = tiny_encoder if kind == "encoder" else tiny_teacher
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    digests = [TeacherRef.find(str(place), heads=False).digest for place in (original, copy)]
    assert digests[0] == digests[1] and digests[0]
    file = copy / "model.safetensors" if kind == "encoder" else copy / "model" / "model.safetensors"
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, file, {"format": "pt"})
    assert TeacherRef.find(str(copy), heads=False).digest != digests[0]


def test_a_description_holds_everything_but_the_weights(tiny_teacher: Path, tmp_path: Path) -> None:
    found = TeacherRef.find(str(tiny_teacher), heads=True)
    found.describe(tmp_path / "teacher", 24)
    described = read_description(tmp_path / "teacher")
    assert found.saved is not None and described.tasks == found.saved.tasks
    assert described.config == found.config and described.info.max_length == 24
    assert not list((tmp_path / "teacher").rglob("*.safetensors"))
    assert {path.name for path in (tmp_path / "teacher").iterdir()} > {"model.json", "tokenizer.json"}


def test_the_number_of_parameters_matches_the_architecture(tiny_teacher: Path) -> None:
    """A BERT of 3 layers, width 16, feed-forward 32, 128 positions; linear heads with 2, 2 and 1 outputs."""
    words, others = 30522 * 16, (128 + 2) * 16 + 2 * 16
    layer = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * (2 * 16)
    heads = sum(16 * outputs + outputs for outputs in (2, 2, 1))
    found = count_parameters(MultiTaskModel.load(tiny_teacher))
    assert found.embeddings == words
    assert found.total == words + others + 3 * layer + heads
    assert found.without_embeddings == found.total - words
    assert found.to_json() == {
        "total": found.total,
        "embeddings": words,
        "without_embeddings": found.without_embeddings,
    }
