"""Transformer encoders compared with the transformers library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from mtkd.models.encoders.encoder_registry import build_student, student_settings
from mtkd.models.encoders.pretrained_config import (
    TransformerConfig,
    factorised,
    locate,
    pretrained_config,
    with_sizes,
)
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo, read_saved
from mtkd.outputs import OutputSpec
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser


def batch(lengths: list[int], vocab: int = 400) -> ModelInputs:
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, vocab, (len(lengths), longest)) * mask
    return ModelInputs(joined=Tokens(ids, mask, torch.zeros_like(ids)))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def families() -> dict[str, object]:
    from transformers import (
        AlbertConfig,
        BertConfig,
        DistilBertConfig,
        ElectraConfig,
        ModernBertConfig,
        RobertaConfig,
        XLMRobertaConfig,
    )

    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    sizes = {"vocab_size": 400, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    return {
        "bert": BertConfig(**sizes, intermediate_size=32),
        "roberta": RobertaConfig(**sizes, intermediate_size=32, pad_token_id=0, max_position_embeddings=40),
        "xlm-roberta": XLMRobertaConfig(
            **sizes, intermediate_size=32, pad_token_id=0, max_position_embeddings=40
        ),
        "albert": AlbertConfig(**sizes, intermediate_size=32, embedding_size=8),
        "modernbert": ModernBertConfig(**sizes, **tokens, intermediate_size=32),
        "electra": ElectraConfig(**sizes, intermediate_size=32, embedding_size=12),
        "distilbert": DistilBertConfig(vocab_size=400, dim=24, n_layers=3, n_heads=2, hidden_dim=32),
    }


FAMILIES = ["bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_outputs_match_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    torch.manual_seed(0)
    original = AutoModel.from_config(families()[family], attn_implementation="eager").eval()
    original.save_pretrained(tmp_path)
    encoder = TransformerEncoder.pretrained(str(tmp_path), "mean").eval()
    inputs = batch([9, 4])
    assert inputs.joined is not None
    mask, some = inputs.joined.mask, frozenset({0, 2, 3})
    need = OutputSpec(pooled=True, cls=some, hidden=some, scores=frozenset({1, 3}), context=frozenset({3}))
    with torch.no_grad():
        ours = encoder(inputs, need)
        theirs = original(
            inputs.joined.ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True
        )
    assert set(ours.hidden) == set(ours.cls) == some and not ours.query
    for layer in some:
        close(ours.hidden[layer][mask], theirs.hidden_states[layer][mask])
        close(ours.cls[layer], theirs.hidden_states[layer][:, 0])
    for layer in (1, 3):
        scores = ours.scores[layer].masked_fill(~mask[:, None, None], -torch.inf)
        queries = mask.unsqueeze(1).expand(scores.shape[:3])
        close(scores.softmax(-1)[queries], theirs.attentions[layer - 1][queries])
    close(ours.pooled, torch.stack([theirs[0][0].mean(0), theirs[0][1, :4].mean(0)]))


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_scores_and_context_can_be_recomputed_from_queries_keys_and_values(family: str) -> None:
    torch.manual_seed(0)
    hf = families()[family].to_dict()
    encoder = TransformerEncoder(TransformerConfig(hf={k: v for k, v in hf.items() if v is not None})).eval()
    layers = frozenset({2})
    with torch.no_grad():
        out = encoder(
            batch([7, 7]), OutputSpec(query=layers, key=layers, value=layers, context=layers, scores=layers)
        )
    q, k, v = (x[2].unflatten(-1, (2, 12)).transpose(1, 2) for x in (out.query, out.key, out.value))
    close(out.scores[2], q @ k.transpose(-1, -2) / 12**0.5)
    close(out.context[2], (out.scores[2].softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_layers_above_the_highest_requested_one_are_not_run(tiny_encoder: Path) -> None:
    encoder = TransformerEncoder.pretrained(str(tiny_encoder)).eval()
    ran: list[int] = []
    for number, layer in enumerate(encoder.body.encoder.layer, 1):
        layer.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    one, two = frozenset({1}), frozenset({2})
    for need, expected in (
        (OutputSpec(hidden=frozenset({0})), []),
        (OutputSpec(hidden=one), [1]),
        (OutputSpec(value=two), [1, 2]),
        (OutputSpec(context=two, cls=one), [1, 2]),
        (OutputSpec(value=one, pooled=True), [1, 2, 3]),
    ):
        ran.clear()
        out = encoder(batch([5, 3]), need)
        assert ran == expected and (out.pooled is not None) == need.pooled


def test_capturing_keeps_the_gradient_and_the_fast_attention(tiny_encoder: Path) -> None:
    from torch.nn import functional

    encoder = TransformerEncoder.pretrained(str(tiny_encoder))
    calls = []
    plain = functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or plain(*a, **k)
        )
        out = encoder(batch([5, 3]), OutputSpec(context=frozenset({3})))
    assert len(calls) == 3
    out.context[3].sum().backward()
    assert encoder.body.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_an_encoder_whose_attention_cannot_be_captured_offers_only_hidden_states() -> None:
    from transformers import MPNetConfig

    sizes = {"vocab_size": 400, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = TransformerConfig(hf=MPNetConfig(**sizes, intermediate_size=32).to_dict())
    assert config.spec.offers.hidden == {0, 1, 2} and not config.spec.offers.query
    encoder = TransformerEncoder(config).eval()
    assert set(encoder(batch([5, 3]), OutputSpec(hidden=frozenset({0, 1}))).hidden) == {0, 1}
    with pytest.raises(UserError, match="'mpnet' does not provide queries of layer 1"):
        encoder(batch([5, 3]), OutputSpec(query=frozenset({1})))


@pytest.mark.parametrize(("init_layers", "layers"), [("first", [1, 2]), ("last", [2, 3]), ([1, 3], [1, 3])])
def test_a_student_copies_the_layers_in_init_layers(
    init_layers: object, layers: list[int], tiny_encoder: Path
) -> None:
    settings = student_settings(
        {
            "kind": "transformer",
            "transformer": {"layers": 2, "heads": 4, "init": str(tiny_encoder), "init_layers": init_layers},
        }
    )
    tokeniser = Tokeniser.load(str(tiny_encoder))
    student = build_student(settings, InitContext(tokeniser, None, tokeniser, InitSpec(None, None)))
    source = TransformerEncoder.pretrained(str(tiny_encoder))
    assert student.spec.heads == 4 and student.n_layers == 2
    for mine, theirs in enumerate(layers):
        for one, other in zip(
            student.body.encoder.layer[mine].parameters(),
            source.body.encoder.layer[theirs - 1].parameters(),
            strict=True,
        ):
            assert torch.equal(one, other)
    assert torch.equal(student.embeddings.weight, source.embeddings.weight)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 4}, "cannot have 4 layers instead of 3"),
        ({"hidden_size": 32}, "cannot have width 32 instead of 16"),
        ({"embedding_size": 8}, "cannot have embedding rank 8"),
        ({"heads": 3}, "of width 16 cannot have 3 attention heads"),
        ({"layers": 2, "init_layers": [1, 4]}, r"init_layers=\[1, 4\] does not fit a student with 2 layers"),
    ],
)
def test_a_checkpoint_of_another_shape_is_rejected(sizes: dict, message: str, tiny_encoder: Path) -> None:
    settings = student_settings({"kind": "transformer", "transformer": {"init": str(tiny_encoder), **sizes}})
    tokeniser = Tokeniser.load(str(tiny_encoder))
    with pytest.raises(UserError, match=message):
        build_student(settings, InitContext(tokeniser, None, tokeniser, InitSpec(None, None)))


@pytest.mark.parametrize("head", [False, True])
def test_weights_of_layers_missing_from_the_configuration_are_rejected(
    head: bool, tiny_encoder: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel, BertForMaskedLM

    source = BertForMaskedLM if head else AutoModel
    source.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    assert TransformerEncoder.pretrained(str(tmp_path)).spec.layers == 3
    assert TransformerEncoder.pretrained(str(tmp_path), layers=2).spec.layers == 2
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 2}))
    with pytest.raises(UserError, match=r"encoder\.layer\.2\..*, but its config\.json has 2 layers"):
        TransformerEncoder.pretrained(str(tmp_path))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "roberta"}))
    with pytest.raises(UserError, match="model_type = 'roberta' contradicts architectures"):
        TransformerEncoder.pretrained(str(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_have_the_same_names_for_every_family(family: str) -> None:
    hf = {k: v for k, v in families()[family].to_dict().items() if v is not None}
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 20}
    encoder = TransformerEncoder(with_sizes(TransformerConfig(hf=hf), **sizes))
    assert (encoder.spec.layers, encoder.spec.hidden_size, encoder.spec.heads) == (2, 16, 4)
    shapes = {tuple(weight.shape) for weight in encoder.parameters()}
    assert {(20, 16), (40, 16)} & shapes, "the feed-forward layer (two in one where it is gated)"


def test_embeddings_can_be_factorised(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    config = factorised(pretrained_config(str(tiny_encoder)), 4)
    encoder = TransformerEncoder(config).eval()
    assert encoder.embeddings.weight.shape == (30522, 4) and encoder.spec.hidden_size == 16
    encoder.save_weights(tmp_path / "model.safetensors")
    again = AutoModel.from_pretrained(tmp_path).eval()
    inputs = batch([6, 3])
    assert inputs.joined is not None
    with torch.no_grad():
        theirs = again(inputs.joined.ids, attention_mask=inputs.joined.mask.long()).last_hidden_state
        close(encoder(inputs, OutputSpec(hidden=frozenset({3}))).hidden[3], theirs)


def test_the_default_teacher_uses_the_pooling_in_its_directory() -> None:
    encoder = TransformerEncoder.pretrained("minilm")
    assert (encoder.n_layers, encoder.width, encoder.config.pooling) == (6, 384, "mean")


def test_a_model_is_the_same_after_saving(tmp_path: Path, tiny_encoder: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "cls")
    tokeniser = Tokeniser.load(locate("minilm"))
    model = MultiTaskModel(encoder, [TASKS["rte"], TASKS["stsb"]], tokeniser, ModelInfo(32, 0)).eval()
    model.save(tmp_path / "model")
    loaded = MultiTaskModel.load(tmp_path / "model")
    inputs = batch([6, 3])
    with torch.no_grad():
        torch.testing.assert_close(model(inputs, "rte").logits, loaded(inputs, "rte").logits, rtol=0, atol=0)
    assert loaded.tasks == model.tasks and loaded.info == model.info
    theirs = AutoModel.from_pretrained(tmp_path / "model").eval()
    assert inputs.joined is not None
    with torch.no_grad():
        hidden = theirs(inputs.joined.ids, attention_mask=inputs.joined.mask.long()).last_hidden_state
        close(hidden[:, 0], model(inputs, "rte", OutputSpec(pooled=True)).pooled)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").vocab_size == tokeniser.vocab_size
    texts = pa.array(["one two", "three"])
    assert loaded.tokeniser.digest == tokeniser.digest
    assert (loaded.tokeniser.token_ids(texts).values == tokeniser.token_ids(texts).values).all()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        MultiTaskModel.load(tmp_path / "model")


@pytest.fixture
def saved(tmp_path: Path, tiny_encoder: Path) -> Path:
    """A saved model with one task."""
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "cls")
    place = tmp_path / "saved"
    MultiTaskModel(encoder, [TASKS["rte"]], Tokeniser.load(str(tiny_encoder)), ModelInfo(32, 0)).save(place)
    return place


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_transformers_does_not_load_a_saved_model_with_a_random_head(saved: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

    config = AutoConfig.from_pretrained(saved)
    assert config.architectures == ["BertModel"] and not config.id2label
    for task in ("text-classification", "token-classification"):
        with pytest.raises(ValueError, match=r"empty sequence|zero-size array"):
            pipeline(task, model=str(saved))("a cat")
    tuned = AutoModelForSequenceClassification.from_pretrained(saved, num_labels=3)
    assert tuned.classifier.out_features == 3, "fine-tuning the encoder with transformers"
    assert read_saved(saved).tasks[0].labels == TASKS["rte"].labels
    assert "`heads.safetensors`: one head per task" in (saved / "README.md").read_text()


@pytest.mark.parametrize(
    "name", ["model.safetensors", "heads.safetensors", "model.json", "config.json", "tokenizer.json"]
)
def test_a_changed_byte_of_a_model_is_detected(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged: it has changed"):
        MultiTaskModel.load(saved)


def test_a_model_without_its_tokeniser_is_rejected(saved: Path) -> None:
    (saved / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        MultiTaskModel.load(saved)
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        TeacherRef.find(str(saved), heads=True).tokeniser()


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_can_be_turned_off_and_on_in_every_family(family: str) -> None:
    hf = {k: v for k, v in families()[family].to_dict().items() if v is not None}
    for dropout in (0.0, 0.5):
        names = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        encoder = TransformerEncoder(with_sizes(TransformerConfig(hf=hf), **names)).train()
        rows = batch([7, 5])
        one, other = (encoder(rows).pooled for _ in range(2))
        assert torch.equal(one, other) == (dropout == 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_reused_and_unused_pages_are_released() -> None:
    code = """
import resource, threading, time, torch
from pathlib import Path
from mtkd import device
def used(): return int(Path('/proc/self/statm').read_text().split()[1]) * resource.getpagesize()
def more(): return used() - before > 50_000_000
device._TRIM_SECONDS = 1.0
with device.keep_memory() as trimming:
    before, deadline = used(), time.monotonic() + 60
    x, y = torch.ones(25_000_000), torch.ones(1000); del x  # 100 MB, a hole below y
    kept = more()
    while trimming and more() and time.monotonic() < deadline: time.sleep(0.1)
    assert not trimming or not more()
print(threading.active_count() == 1, kept == trimming, len(y))
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["True", "True", "1000"]
