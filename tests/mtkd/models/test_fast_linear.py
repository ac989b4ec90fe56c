"""Linear layers that use oneDNN match those of torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mtkd.models import fast_linear
from mtkd.models.fast_linear import Linear, use_linear


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the inputs that oneDNN processed."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    made: list[torch.Size] = []
    multiply = fast_linear._multiply

    def counted(values: Tensor, *others: Tensor) -> Tensor:
        made.append(values.shape)
        return multiply(values, *others)

    monkeypatch.setattr(fast_linear, "_multiply", counted)
    monkeypatch.setattr(fast_linear, "_MIN_MULTIPLICATIONS", 10_000)
    return made


def layers(bias: bool = True, outputs: int = 56) -> tuple[nn.Linear, nn.Linear]:
    """Return a layer of torch, and a fast layer with the same weights."""
    torch.manual_seed(0)
    reference, layer = nn.Linear(24, outputs, bias=bias), Linear(24, outputs, bias=bias)
    layer.load_state_dict(reference.state_dict())
    return reference, layer


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("outputs", [16, 56])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40, 24), (3, 14, 24), (2, 2, 9, 24)])
def test_outputs_and_gradients_match_torch(
    shape: tuple[int, ...],
    bias: bool,
    outputs: int,
    capability: str,
    calls: list[torch.Size],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    made = []
    for layer in layers(bias, outputs):
        values = torch.arange(float(torch.Size(shape).numel())).sin().reshape(shape).requires_grad_()
        output = layer(values)
        (output * output.detach().cos()).sum().backward()
        with torch.no_grad():
            made.append([output, layer(values), values.grad, *(p.grad for p in layer.parameters())])
    for expected, found in zip(*made, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    rows = torch.Size(shape[:-1]).numel()
    transposed = capability == "AVX512" and outputs < 24  # in the gradient of the weights
    of_weights = [torch.Size([outputs, rows])] if transposed else []
    assert calls == [torch.Size(shape), torch.Size([*shape[:-1], outputs]), *of_weights, torch.Size(shape)]


def test_the_gradient_of_frozen_weights_is_not_computed(calls: list[torch.Size]) -> None:
    reference, layer = layers()
    layer.requires_grad_(False)
    values = torch.randn(60, 24, requires_grad=True)
    layer(values).sum().backward()
    expected = torch.autograd.grad(reference(values).sum(), values)[0]
    assert values.grad is not None and layer.weight.grad is None and len(calls) == 2
    torch.testing.assert_close(values.grad, expected, rtol=1e-5, atol=1e-5)


def test_unsupported_inputs_are_left_to_torch(calls: list[torch.Size]) -> None:
    reference, layer = layers()
    values = torch.randn(60, 24)
    for few in (values[:0], values[0]):
        assert torch.equal(layer(few), reference(few))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(values), reference(values))
    assert torch.equal(layer.double()(values.double()), reference.double()(values.double()))
    exported = torch.export.export(layer.float(), (values,)).graph_module.code
    assert "mkldnn" not in exported and not calls


def test_layers_are_replaced_on_slow_processors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in (False, True):
        monkeypatch.setattr(fast_linear, "has_slow_mkl", lambda slow=slow: slow)
        module = nn.Sequential(nn.Linear(2, 3), nn.ModuleList([nn.Linear(3, 1)]), nn.Bilinear(2, 2, 2))
        weights = list(module.parameters())
        use_linear(module)
        kinds = [type(child) for child in module.modules() if isinstance(child, nn.Linear)]
        assert kinds == [Linear if slow else nn.Linear] * 2
        assert all(a is b for a, b in zip(weights, module.parameters(), strict=True))
