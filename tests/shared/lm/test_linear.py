"""oneDNN's products beside torch's own, in float64."""

import pytest
import torch
from torch import Tensor, nn

import shared.lm.linear
from shared.lm.linear import Linear


def results(layer: Linear, x: Tensor) -> tuple[Tensor, ...]:
    """Output, and the gradients of a sum over it by input, weight and bias."""
    x = x.detach().requires_grad_()
    output = layer(x)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return (output.detach(), *torch.autograd.grad((output * weights).sum(), (x, *layer.parameters())))


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.lm.linear, "SMALLEST_PRODUCT", 0)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 6), (3, 7, 6), (0, 6)])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_plain_product(
    shape: tuple[int, ...], onednn: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if onednn and not shared.lm.linear.HAS_ONEDNN:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(shared.lm.linear, "HAS_ONEDNN", onednn)
    torch.manual_seed(0)
    layer, x = Linear(6, 4, bias=bias), torch.randn(shape)
    exact = nn.Linear(6, 4, bias=bias, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    for found, expected in zip(results(layer, x), results(exact, x.double()), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_an_input_that_is_not_contiguous_gives_the_same() -> None:
    torch.manual_seed(0)
    layer, x = Linear(6, 4), torch.randn(6, 5, 3).transpose(0, 2)
    for found, expected in zip(results(layer, x), results(layer, x.contiguous()), strict=True):
        torch.testing.assert_close(found, expected)


def test_only_float32_outside_of_inference_mode_takes_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference, bfloat16, autocast and small products stay torch's own; evaluation and frozen weights do not."""
    calls: list[Tensor] = []

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        calls.append(x)
        return x @ weight.T

    monkeypatch.setattr(shared.lm.linear, "HAS_ONEDNN", True)
    monkeypatch.setattr(shared.lm.linear, "fast_product", counted)
    layer, x = Linear(6, 4), torch.randn(2, 6)
    with torch.inference_mode():
        layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    Linear(6, 4).bfloat16()(x.bfloat16())
    assert not calls
    layer(x)
    with torch.no_grad():
        layer(x)
    Linear(6, 4).requires_grad_(False)(x)
    assert len(calls) == 3
    monkeypatch.setattr(shared.lm.linear, "SMALLEST_PRODUCT", 49)  # one more than 2 x 6 x 4
    layer(x)
    assert len(calls) == 3
