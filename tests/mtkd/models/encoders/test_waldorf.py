"""WaLDORf students: compared with a forward pass of single rows; padding, saving, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mtkd.evaluation.inference_bench import BenchSettings, batch_runner, bench_inference
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.encoder_registry import build_student, student_settings
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.encoders.waldorf import WaldorfConfig, WaldorfEncoder
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import ModelInfo
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser

SIZES = {
    "embedding_size": 6,
    "layers": 2,
    "hidden_size": 16,
    "heads": 2,
    "head_size": 8,
    "intermediate_size": 20,
    "output_size": 12,
    "positions": 32,
}
BLOCKS = frozenset({1, 2})
ALL = OutputSpec(pooled=True, sequence=True, hidden=BLOCKS | {0}, scores=BLOCKS)


def encoder(**changes: object) -> WaldorfEncoder:
    torch.manual_seed(0)
    made = WaldorfEncoder(WaldorfConfig.model_validate({**SIZES, "vocab_size": 50, **changes})).eval()
    for weight in made.parameters():  # far from the initial weights, with which the outputs hardly vary
        nn.init.normal_(weight, std=0.4)
    return made


def batch(lengths: list[int], to: int = 0) -> ModelInputs:
    """Return rows of these lengths; their padding is not zero."""
    longest = max(*lengths, to)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(50, mask.shape, generator=torch.Generator().manual_seed(1))
    return ModelInputs(joined=Tokens(ids, mask, (ids > 25).long()))


def row(inputs: ModelInputs, number: int, length: int) -> ModelInputs:
    """One row without its padding."""
    tokens = inputs.joined
    assert tokens is not None
    ids, mask, token_type_ids = (
        t[number : number + 1, :length] for t in (tokens.ids, tokens.mask, tokens.token_type_ids)
    )
    return ModelInputs(joined=Tokens(ids, mask, token_type_ids))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def plain_forward(model: WaldorfEncoder, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sequence, pooled and last states of one row without padding, computed with torch layers."""
    length = tokens.ids.shape[1]
    x = (
        model.embeddings(tokens.ids)
        + model.position_embeddings.weight[:length]
        + model.token_type_embeddings(tokens.token_type_ids)
    )
    x, lengths = model.norm(x), [length]

    def convolved(x: Tensor, layer: nn.Module) -> Tensor:
        weight, bias = layer.image.weight.squeeze(2), layer.image.bias
        return functional.conv1d(x.transpose(1, 2), weight, bias, padding=weight.shape[-1] // 2)

    for layer in model.downsample:
        x = functional.gelu(functional.max_pool1d(convolved(x, layer), 2, ceil_mode=True)).transpose(1, 2)
        lengths.append(x.shape[1])
    x = model.up_norm(model.up(x))
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(16, 2, 20, 0.0, "gelu", batch_first=True)
        weights = [
            *(block.attend.weight, block.attend.bias, block.output.weight, block.output.bias),
            *(block.inner.weight, block.inner.bias, block.outer.weight, block.outer.bias),
            *(block.attention_norm.weight, block.attention_norm.bias, block.norm.weight, block.norm.bias),
        ]
        layer.load_state_dict(dict(zip(layer.state_dict(), weights, strict=True)))
        x = layer(x)
    last = x
    for layer, wide in zip(model.upsample, (lengths[1], length), strict=True):
        x = functional.interpolate(x.transpose(1, 2), scale_factor=2.0)[..., :wide].transpose(1, 2)
        x = functional.gelu(convolved(x, layer)).transpose(1, 2)
    return x, torch.tanh(model.pool(last.mean(1))), last


@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("kernel", [3, 5])
def test_matches_torch_layers_on_single_rows(length: int, kernel: int) -> None:
    model, inputs = encoder(kernel_size=kernel), batch([length])
    assert inputs.joined is not None
    with torch.no_grad():
        out = model(inputs, ALL)
        sequence, pooled, last = plain_forward(model, inputs.joined)
    close(out.sequence, sequence)
    close(out.pooled, pooled)
    close(out.hidden[2], last)


def test_padding_changes_nothing_at_any_length() -> None:
    model, lengths = encoder(), list(range(1, 18))
    for to in (17, 18, 23, 32):
        inputs = batch(lengths, to)
        with torch.no_grad():
            together = model(inputs, ALL)
            for number, length in enumerate(lengths):
                alone, windows = model(row(inputs, number, length), ALL), -(-length // 4)
                close(together.sequence[number, :length], alone.sequence[0])
                close(together.pooled[number], alone.pooled[0])
                close(together.hidden[0][number, :length], alone.hidden[0][0])
                for layer in BLOCKS:
                    assert alone.hidden[layer].shape == (1, windows, 16)
                    close(together.hidden[layer][number, :windows], alone.hidden[layer][0])
                    close(together.scores[layer][number, :, :windows, :windows], alone.scores[layer][0])


def test_no_gradient_comes_from_padding() -> None:
    model = encoder().train()
    inputs = batch([3, 9], 14)
    out = model(inputs, ALL)
    assert inputs.joined is not None
    (out.sequence[inputs.joined.mask].sum() + out.pooled.sum()).backward()
    assert model.position_embeddings.weight.grad[9:].abs().sum() == 0
    assert all(w.grad is not None and w.grad.isfinite().all() for w in model.parameters())


def test_only_requested_outputs_are_computed() -> None:
    model = encoder()
    ran: list[str] = []
    for name, module in model.named_modules():
        if name.split(".")[0] in ("downsample", "blocks", "upsample") and name.count(".") == 1:
            module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    below = ["downsample.0", "downsample.1"]
    for need, expected in (
        (OutputSpec(hidden=frozenset({0})), []),
        (OutputSpec(scores=frozenset({1})), [*below, "blocks.0"]),
        (OutputSpec(hidden=frozenset({2})), [*below, "blocks.0", "blocks.1"]),
        (OutputSpec(pooled=True), [*below, "blocks.0", "blocks.1"]),
        (OutputSpec(sequence=True), [*below, "blocks.0", "blocks.1", "upsample.0", "upsample.1"]),
    ):
        ran.clear()
        out = model(batch([5]), need)
        assert ran == expected
        assert set(out.hidden) == need.hidden and set(out.scores) == need.scores
        assert (out.pooled is not None, out.sequence is not None) == (need.pooled, need.sequence)


def test_attention_scores_are_those_that_the_attention_uses() -> None:
    model, inputs = encoder(), batch([16])
    with torch.no_grad():
        out = model(inputs, OutputSpec(hidden=BLOCKS, scores=BLOCKS))
        query, key, _ = model.blocks[1].attend(out.hidden[1]).chunk(3, -1)
    split = [x.unflatten(-1, (2, 8)).transpose(1, 2) for x in (query, key)]
    close(out.scores[2], split[0] @ split[1].mT / 8**0.5)


def test_a_loaded_model_gives_the_same_outputs(tmp_path: Path) -> None:
    tokeniser = Tokeniser.load(locate("minilm"))
    model = MultiTaskModel(
        encoder(vocab_size=tokeniser.vocab_size),
        [TASKS["rte"], TASKS["squad"]],
        tokeniser,
        ModelInfo(max_length=16, head_hidden_size=0),
    ).eval()
    model.save(tmp_path / "model")
    again = MultiTaskModel.load(tmp_path / "model")
    assert again.encoder.config == model.encoder.config
    with torch.no_grad():
        for head, answers in (("rte", (2, 2)), ("squad", (2, 2, 7))):
            mine, its = (m(batch([5, 7]), head).logits for m in (model, again))
            assert mine.shape == answers and torch.equal(mine, its)
    assert batch_runner(again, "squad", BenchSettings(seq_len=16, batch=3))().shape == (3, 2, 16)
    assert count_parameters(again).embeddings == 6 * tokeniser.vocab_size
    with pytest.raises(UserError, match="cannot read 33 tokens"):
        bench_inference({"it": tmp_path}, BenchSettings(seq_len=33, batch=1, rounds=1))
    with pytest.raises(UserError, match="more than the 32 positions"):
        model.set_max_length(40)


def test_a_student_of_the_size_in_the_paper_can_be_built() -> None:
    with torch.device("meta"):
        made = WaldorfEncoder(WaldorfConfig(vocab_size=30522))
    assert (made.spec.layers, made.spec.heads, made.spec.stride) == (8, 16, 4)
    assert 20e6 < sum(weight.numel() for weight in made.parameters()) < 110e6 / 4


def test_word_embeddings_start_from_the_teacher(tiny_teacher: Path) -> None:
    teacher = MultiTaskModel.load(tiny_teacher)
    init_spec = InitSpec(teacher.encoder.config, None)
    context = InitContext(teacher.tokeniser, teacher.encoder, teacher.tokeniser, init_spec)

    def built(context: InitContext = context, **sizes: object) -> AnyEncoder:
        settings = student_settings({"kind": "waldorf", "waldorf": {"embeddings": "teacher", **sizes}})
        return build_student(settings, context)

    table = teacher.encoder.embeddings.weight
    student = built(hidden_size=8, layers=1)
    assert student.spec.embedding_size == table.shape[1] == 16
    assert torch.equal(student.embeddings.weight, table) and student.embeddings.weight is not table
    assert student.embeddings.weight.requires_grad
    assert student(batch([5, 7])).pooled.isfinite().all()
    with pytest.raises(UserError, match="have width 6, but those of the teacher have width 16"):
        built(embedding_size=6)
    with pytest.raises(UserError, match=r"student\.waldorf\.embeddings=teacher needs a teacher"):
        built(replace(context, teacher=None))


def test_the_recipe_runs_from_the_command_line(mtkd: Callable, tiny_teacher: Path, tmp_path: Path) -> None:
    sizes = [word for key, value in SIZES.items() for word in ("--set", f"student.waldorf.{key}={value}")]
    words = [
        "distill",
        "waldorf",
        "--data",
        "pocket",
        "--tasks",
        "rte,sst2",
        "--limit",
        24,
        "--eval-limit",
        16,
    ]
    words += [
        "--set",
        "student.max_length=30",
        "--set",
        "train.batch_size=4",
        "--epochs",
        2,
        "--quiet",
        *sizes,
    ]
    done = mtkd(*words, "--teacher", tiny_teacher, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(record["scores"]) == {"rte/validation", "sst2/validation"}
    history = record["training"]["history"]
    assert "scores" not in history[0] and "scores" in history[1], "not judged while it is built"
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    first = next(line for line in log if "loss/emb" in line)
    assert first["loss/emb"] > 0 and not {"loss/hid", "loss/soft", "loss/labels"} & set(first)
    words[words.index("student.waldorf.heads=2")] = "student.waldorf.heads=4"
    other = mtkd(*words, "--teacher", tiny_teacher, "--out", tmp_path / "x")
    assert other.code == 2 and "--set student.waldorf.heads=2" in other.err
