"""The last layer, run only for the needed tokens: the same outputs and gradients, and when it applies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertForQuestionAnswering, BertForSequenceClassification

from mtkd.losses.hidden_knowledge import HiddenKnowledge
from mtkd.losses.objective import Objective
from mtkd.models.capture import find_layers
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.last_layer import SELECTIVE_FORWARD
from mtkd.outputs import EncoderOutput, ModelOutput, OutputSpec, Selected
from mtkd.selection import Selection
from tasks.tokens.batching import ModelInputs, Tokens

LENGTH, TOP = 9, 2
POOLED = OutputSpec(pooled=True)


def encoder_of(family: str = "bert", pooling: str = "cls", **sizes: Any) -> TransformerEncoder:
    """A small encoder without dropout."""
    torch.manual_seed(0)
    size = {"distilbert": {"n_layers": TOP, "dim": 16, "n_heads": 2, "hidden_dim": 24}}.get(
        family,
        {"num_hidden_layers": TOP, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24},
    )
    hf = {"model_type": family, "vocab_size": 40, "max_position_embeddings": LENGTH + 2, "pad_token_id": 1}
    encoder = TransformerEncoder(TransformerConfig(hf={**hf, **size}, pooling=pooling, **sizes))  # type: ignore[arg-type]
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return encoder


def inputs_of(needed: Tensor | None = None) -> ModelInputs:
    """Three rows, the last two padded."""
    torch.manual_seed(1)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5], [2]])
    ids = torch.randint(3, 40, mask.shape).masked_fill(~mask, 1)
    return ModelInputs(joined=Tokens(ids, mask, torch.zeros_like(ids)), needed=needed)


@pytest.fixture
def tokens_seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[TransformerEncoder], list[int]]:
    """Records for how many tokens per row the feed-forward network of the last layer is run."""

    def watch(encoder: TransformerEncoder) -> list[int]:
        seen: list[int] = []
        found = find_layers(encoder.body, TOP)
        assert found is not None
        last: Any = found[1][-1]
        (last.ffn if hasattr(last, "ffn") else last.intermediate).register_forward_hook(
            lambda module, args, output: seen.append(output.shape[1])
        )
        return seen

    return watch


def both_ways(
    encoder: TransformerEncoder, run: Callable[[], Tensor]
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The result of `run` and all gradients, with and without the selection of tokens."""
    for selects in (True, False):
        encoder._selects_tokens = selects
        encoder.zero_grad()
        result = run()
        result.square().sum().backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        yield result.detach(), copy.deepcopy(gradients)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("family", SELECTIVE_FORWARD)
@pytest.mark.parametrize("pooling", ["cls", "pooler", "cls-of-layers"])
def test_outputs_and_gradients_are_those_of_the_whole_layer(
    family: str, pooling: str, training: bool, tokens_seen: Any
) -> None:
    if family in ("electra", "distilbert") and pooling == "pooler":
        pytest.skip("it has no pooling layer")
    encoder = encoder_of(family, pooling).train(training)
    seen = tokens_seen(encoder)
    (selected, gradients), (whole, all_gradients) = both_ways(encoder, lambda: encoder(inputs_of()).pooled)
    assert seen == [1, LENGTH]
    torch.testing.assert_close(selected, whole)
    assert gradients.keys() == all_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, all_gradients[name], msg=name)


def test_pruned_heads_and_factorised_embeddings(tokens_seen: Any) -> None:
    encoder = encoder_of(head_size=4, embedding_rank=3)
    seen = tokens_seen(encoder)
    (selected, _), (whole, _) = both_ways(encoder, lambda: encoder(inputs_of()).pooled)
    assert seen == [1, LENGTH]
    torch.testing.assert_close(selected, whole)


NEEDED = torch.tensor([[3, 0, 8], [4, 1, 2], [1, 0, 0]])


@pytest.mark.parametrize("more", [{}, {"pooled": True}, {"cls": {1, TOP}, "hidden": {0, 1, TOP}}])
def test_hidden_states_of_some_tokens(more: dict[str, Any], tokens_seen: Any) -> None:
    need = OutputSpec(hidden={TOP}) | OutputSpec(**more)
    encoder = encoder_of(pooling="pooler")
    seen = tokens_seen(encoder)

    def states(needed: Tensor | None) -> EncoderOutput:
        output: EncoderOutput = encoder(inputs_of(needed), need)
        assert output.positions.keys() == ({TOP} if len(output.hidden[TOP][0]) < LENGTH else set())
        return output

    some, whole = states(NEEDED), states(None)
    assert seen == [4, LENGTH] and torch.equal(some.positions[TOP], NEEDED)
    expected = whole.hidden[TOP][torch.arange(3).unsqueeze(1), NEEDED]
    torch.testing.assert_close(some.hidden[TOP], expected)
    for layer in need.hidden - {TOP}:
        assert torch.equal(some.hidden[layer], whole.hidden[layer])
    for layer in need.cls:
        torch.testing.assert_close(some.cls[layer], whole.cls[layer])
    if need.pooled:
        torch.testing.assert_close(some.pooled, whole.pooled)
    assert not states(torch.arange(LENGTH).repeat(3, 1)).positions, "no fewer tokens than there are"


@pytest.mark.parametrize(
    "need",
    [
        OutputSpec(pooled=True, hidden={TOP}),
        OutputSpec(pooled=True, query={TOP}),
        OutputSpec(pooled=True, context={TOP}),
        OutputSpec(pooled=True, mean={TOP}),
        OutputSpec(sequence=True),
    ],
)
def test_other_outputs_need_all_tokens(need: OutputSpec, tokens_seen: Any) -> None:
    encoder = encoder_of()
    seen = tokens_seen(encoder)
    output = encoder(inputs_of(), need)
    assert seen == [LENGTH] and not output.positions
    encoder(inputs_of(), OutputSpec(pooled=True, hidden={0, 1}, query={1}, value={1}))
    assert seen == [LENGTH, 1]


def test_other_encoders_run_the_last_layer_for_all_tokens(tokens_seen: Any) -> None:
    mean = encoder_of(pooling="mean")
    seen = tokens_seen(mean)
    mean(inputs_of())
    assert seen == [LENGTH]
    output = encoder_of("mpnet")(inputs_of(NEEDED), OutputSpec(hidden={TOP}))
    assert output.hidden[TOP].shape[1] == LENGTH and not output.positions


class MeanClassifier(BertForSequenceClassification):
    """A classifier whose head might read every token."""


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [(BertForSequenceClassification, 1), (MeanClassifier, LENGTH), (BertForQuestionAnswering, LENGTH)],
)
def test_checkpoints_of_transformers(kind: Any, tokens: int, tokens_seen: Any) -> None:
    classifier = kind(encoder_of(pooling="pooler").body.config)
    encoder = TransformerEncoder(encoder_of(pooling="pooler").config, classifier.base_model).eval()
    classifier.eval()
    seen = tokens_seen(encoder)
    results = [encoder.run(classifier, inputs_of(), OutputSpec())[0]]
    encoder._selects_tokens = False
    results.append(encoder.run(classifier, inputs_of(), OutputSpec())[0])
    assert seen == [tokens, LENGTH]
    torch.testing.assert_close(results[0].to_tuple(), results[1].to_tuple())


def test_a_term_on_few_tokens_reads_only_these_of_the_student(tokens_seen: Any) -> None:
    encoder = encoder_of()
    seen = tokens_seen(encoder)
    values = torch.randn(3, 3, 16)
    valid = torch.tensor([[True] * 3, [True] * 3, [True, False, False]])
    part = Selected(NEEDED, valid, values, torch.rand(3, 3, 16) < 0.3)
    teacher = ModelOutput(selected={12: part})
    term = HiddenKnowledge([(TOP, 12)], Selection(3, "left", 0.3, "magnitude", (), None), lambda h, layer: h)  # type: ignore[arg-type]
    objective = Objective({"hidden": term})
    assert objective.token_positions(1, teacher) is None and objective.token_positions(TOP, None) is None
    needed = objective.token_positions(TOP, teacher)
    assert needed is NEEDED
    assert Objective({"a": term, "b": copy.deepcopy(term)}).token_positions(TOP, teacher) is None

    def loss() -> Tensor:
        from mtkd.losses.loss_term import TermInput

        output = encoder(inputs_of(needed), objective.student_need)
        return term.pair_loss(TermInput(None, None, output, teacher, 7), TOP, 12)  # type: ignore[arg-type]

    (selected, gradients), (whole, all_gradients) = both_ways(encoder, loss)
    assert seen == [4, LENGTH]
    torch.testing.assert_close(selected, whole)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, all_gradients[name], msg=name)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))])
def test_a_copy_of_an_encoder_runs_its_own_last_layer(duplicate: Any, tokens_seen: Any) -> None:
    encoder = encoder_of().eval()
    copied = duplicate(encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    seen = tokens_seen(copied)
    assert copied(inputs_of()).pooled.abs().sum() > 0 and seen == [1]
