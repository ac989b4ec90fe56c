"""BiLSTM students compared with a loop over single rows, written from the equations with torch.nn.LSTM."""

import pytest
import torch
from torch import Tensor, nn

from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens

KINDS = ["bilstm-biattention", "bilstm"]
H = 5


def make(kind: str, **more) -> BiLSTMEncoder:
    torch.manual_seed(1)
    sizes = {"vocab_size": 40, "embedding_size": 6, "projection_size": 7, "hidden_size": H, "output_size": 9}
    encoder = BiLSTMEncoder(BiLSTMConfig(kind=kind, **sizes | more)).eval()
    with torch.no_grad():  # larger than the initial weights, so that all effects are visible
        for weight in encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return encoder


def tokens(lengths: list[int], width: int, seed: int = 0) -> Tokens:
    ids = torch.randint(40, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Tokens(ids, mask, torch.zeros_like(ids))


def reference_lstm(ours: nn.Module) -> nn.LSTM:
    """Return a bidirectional nn.LSTM with the same weights."""
    lstm = nn.LSTM(ours.forwards.input_size, H, bidirectional=True)
    for name, weight in ours.forwards.named_parameters():
        getattr(lstm, name).data = weight.data
    for name, weight in ours.backwards.named_parameters():
        getattr(lstm, f"{name}_reverse").data = weight.data
    return lstm


def naive_row(encoder: BiLSTMEncoder, texts: list[Tensor]) -> Tensor:
    """Return the pooled vector of one row of ids without padding (Y = X for a single text)."""
    first = reference_lstm(encoder.lstm)
    states = []
    for ids in texts:
        words = torch.relu(
            encoder.embeddings.weight[ids] @ encoder.projection.weight.T + encoder.projection.bias
        )
        states.append(first(words)[0])
    x, y = states[0], states[-1]
    if encoder.config.kind == "bilstm":
        h_x, h_y = (torch.cat([s[-1, :H], s[0, H:]]) for s in (x, y))
        features = torch.cat([h_x, h_y, h_x * h_y, abs(h_x - h_y)])
    else:
        second = reference_lstm(encoder.compare.lstm)
        affinity = x @ y.T
        a_x = torch.exp(affinity) / torch.exp(affinity).sum(0, keepdim=True)
        a_y = torch.exp(affinity.T) / torch.exp(affinity.T).sum(0, keepdim=True)
        c_x, c_y = a_x.T @ x, a_y.T @ y
        parts = []
        for own, context in ((x, c_y), (y, c_x)):
            out = second(torch.cat([own, own - context, own * context], 1))[0]
            weights = torch.softmax(out @ encoder.compare.attention.weight[0], 0)
            parts += [
                out.max(0).values,
                out.mean(0),
                sum(w * row for w, row in zip(weights, out, strict=True)),
            ]
        features = torch.cat(parts)
    return torch.relu(encoder.output.weight @ features + encoder.output.bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_texts", [1, 2])
def test_matches_the_equations_row_by_row(kind, n_texts):
    encoder = make(kind)
    lengths = [[3, 6, 1, 4], [5, 2, 1, 8]][:n_texts]
    texts = tuple(tokens(length, max(length) + 2, seed) for seed, length in enumerate(lengths))
    with torch.inference_mode():
        pooled = encoder(ModelInputs(texts=texts)).pooled
        rows = [
            naive_row(encoder, [t.ids[row, : length[row]] for t, length in zip(texts, lengths, strict=True)])
            for row in range(4)
        ]
    assert pooled.shape == (4, encoder.width)
    torch.testing.assert_close(pooled, torch.stack(rows), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    encoder = make(kind)
    x, y = tokens([4, 2], 4, 0), tokens([3, 5], 5, 1)
    wide = [tokens(lengths, 11, 2) for lengths in ([4, 2], [3, 5])]
    for narrow, padded in zip((x, y), wide, strict=True):
        padded.ids[:, : narrow.ids.shape[1]][narrow.mask] = narrow.ids[narrow.mask]
    with torch.inference_mode():
        expected = encoder(ModelInputs(texts=(x, y))).pooled
        torch.testing.assert_close(
            encoder(ModelInputs(texts=tuple(wide))).pooled, expected, atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns_and_padding_does_not(kind):
    encoder = make(kind).train()
    x, y = tokens([4, 2], 6, 0), tokens([3, 5], 6, 1)
    for text in (x, y):
        text.ids[text.mask] = text.ids[text.mask] % 39
        text.ids[~text.mask] = 39
    encoder(ModelInputs(texts=(x, y))).pooled.square().sum().backward()
    for name, weight in encoder.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert not encoder.embeddings.weight.grad[39].any()


def test_gradients_agree_with_finite_differences():
    encoder = make("bilstm-biattention", dropout=0.0).double()
    inputs = ModelInputs(texts=(tokens([3, 2], 3, 0), tokens([1, 2], 2, 1)))

    def pooled(weight: Tensor) -> Tensor:
        return torch.func.functional_call(encoder, {"compare.attention.weight": weight}, (inputs,)).pooled

    weight = encoder.compare.attention.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(pooled, weight)


def test_a_single_text_attends_to_itself():
    encoder = make("bilstm-biattention")
    x = tokens([4, 2], 4)
    copy = Tokens(x.ids.clone(), x.mask.clone(), x.token_type_ids)
    with torch.inference_mode():
        once, twice = (encoder(ModelInputs(texts=texts)).pooled for texts in ((x,), (x, copy)))
    torch.testing.assert_close(once, twice, atol=1e-6, rtol=1e-5)


def test_mixed_precision_stays_near_full_precision():
    encoder = make("bilstm-biattention")
    inputs = ModelInputs(texts=(tokens([4, 2], 4, 0), tokens([3, 5], 5, 1)))
    with torch.autocast("cpu", torch.bfloat16):
        pooled = encoder(inputs).pooled
        pooled.float().sum().backward()
    expected = encoder(inputs).pooled
    assert (pooled.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_unchanged_after_saving_and_loading(kind):
    encoder = make(kind)
    inputs = ModelInputs(texts=(tokens([4, 2], 4, 0), tokens([3, 5], 5, 1)))
    again = BiLSTMEncoder(BiLSTMConfig(**encoder.config.model_dump())).eval()
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(inputs).pooled, again(inputs).pooled)


def test_starts_from_given_embeddings():
    given = torch.randn(40, 6)
    encoder = BiLSTMEncoder(BiLSTMConfig(vocab_size=40, embedding_size=6), given)
    assert torch.equal(encoder.embeddings.weight, given)
    with pytest.raises(UserError, match=r"\(40, 6\).*\n.*\(40, 300\)"):
        BiLSTMEncoder(BiLSTMConfig(vocab_size=40), given)


def test_the_forget_gate_is_initially_open():
    encoder = BiLSTMEncoder(BiLSTMConfig(vocab_size=40))
    for lstm in (encoder.lstm.forwards, encoder.compare.lstm.backwards):
        bias = lstm.bias_ih_l0 + lstm.bias_hh_l0
        assert bias.view(4, -1).mean(1).tolist() == [0, 1, 0, 0]


def test_the_default_size_matches_the_paper():
    encoder = BiLSTMEncoder(BiLSTMConfig(vocab_size=10))
    outputs = [2, 2, 1, 2, 3, 2, 2]  # SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE
    heads = sum(768 * 512 + 512 + 512 * n + n for n in outputs)
    total = sum(weight.numel() for weight in encoder.parameters()) - encoder.embeddings.weight.numel() + heads
    assert abs(total / 10.2e6 - 1) < 0.05
