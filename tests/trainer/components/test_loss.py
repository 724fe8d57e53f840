"""The chunked loss beside `F.cross_entropy` on whole logits."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import trainer.components.loss as module
from trainer.components.loss import IGNORED, TrainingLoss, next_token_loss
from trainer.components.model import new_model
from trainer.settings.train import ModelSettings


def draw(rows: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden [rows, 8], weight [50, 8] and targets, a third of them not scored."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 8, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(50, 8, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(0, 50, (rows,), generator=generator)
    targets[::3] = IGNORED
    return hidden, weight, targets


def plain_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, z_loss: float, soft_cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight)
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    nats = F.cross_entropy(logits, targets, reduction="sum") * scale
    squares = logits.logsumexp(1).square()[targets != IGNORED].sum() * scale
    return nats + z_loss * squares, nats


@pytest.mark.parametrize("soft_cap", [0.0, 2.0, 30.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 7, 256, 600])
def test_it_is_the_plain_loss(rows: int, z_loss: float, soft_cap: float) -> None:
    hidden, weight, targets = draw(rows)
    found, nats = next_token_loss(hidden, weight, targets, scale=0.5, z_loss=z_loss, soft_cap=soft_cap)
    exact = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected, expected_nats = plain_loss(*exact, targets, 0.5, z_loss, soft_cap)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert nats.item() == pytest.approx(expected_nats.item(), rel=1e-6)
    gradients = torch.autograd.grad(3 * found, (hidden, weight))
    for gradient, true in zip(gradients, torch.autograd.grad(3 * expected, exact), strict=True):
        torch.testing.assert_close(gradient.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_its_gradients_are_the_differences_of_its_values(cap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, over several chunks."""
    monkeypatch.setattr(module, "_ROWS_ON_CPU", 4)
    hidden, weight, targets = draw(10, dtype=torch.float64)
    torch.autograd.gradcheck(
        lambda h, w: next_token_loss(h, w, targets, scale=0.7, z_loss=0.2, soft_cap=cap)[0], (hidden, weight)
    )


def test_without_gradients_the_value_is_the_same() -> None:
    hidden, weight, targets = draw(600)
    with_gradients = next_token_loss(hidden, weight, targets, scale=0.5, z_loss=0.1)
    with torch.no_grad():
        assert next_token_loss(hidden, weight, targets, scale=0.5, z_loss=0.1) == with_gradients


def test_targets_that_are_not_scored_cost_nothing() -> None:
    """B82: no scored target is a loss of 0 and a gradient of 0, not NaN."""
    hidden, weight, targets = draw(5)
    loss, nats = next_token_loss(hidden, weight, torch.full_like(targets, IGNORED), scale=1.0, z_loss=0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == nats.item() == 0
    for leaf in (hidden, weight):
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_no_rows_cost_nothing() -> None:
    hidden, weight, targets = draw(3)
    loss, _ = next_token_loss(hidden[:0], weight, targets[:0], scale=1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0


@pytest.mark.parametrize("wrong", [50, -1])
def test_targets_beyond_the_vocabulary_are_refused(wrong: int) -> None:
    hidden, weight, targets = draw(3)
    targets[1] = wrong
    with pytest.raises(RuntimeError, match="out of bounds"):
        next_token_loss(hidden, weight, targets, scale=1.0)


def test_large_logits_and_unlikely_targets_are_exact() -> None:
    """Where exp would overflow, and where the target's probability is 0 in float32."""
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    loss, _ = next_token_loss(hidden, weight, torch.tensor([1, 1]), scale=1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 600
    torch.testing.assert_close(hidden.grad, torch.tensor([[2.0], [0.0]]))


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_under_autocast_sums_stay_in_float32(cap: float) -> None:
    hidden, weight, targets = draw(600)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = next_token_loss(hidden, weight, targets, scale=1 / 400, soft_cap=cap)
    loss.backward()  # type: ignore[no-untyped-call]
    expected, _ = plain_loss(hidden, weight, targets, 1 / 400, 0.0, cap)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-3)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    true = torch.autograd.grad(expected, weight)[0]
    assert (weight.grad - true).norm() < 0.01 * true.norm()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_and_its_loss_are_one_module(tied: bool) -> None:
    model = new_model(ModelSettings(d_model=32, num_layers=1, num_heads=2, tie_embeddings=tied), 60, seed=0)
    tokens = torch.randint(0, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    loss, _ = TrainingLoss(model)(tokens[:, :-1], tokens[:, 1:], scale=1 / 24)
    expected = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    parameters = list(model.parameters())
    for gradient, true in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(gradient, true, rtol=1e-5, atol=1e-6)


@pytest.mark.case("D55")
def test_nothing_of_the_compilers_is_imported_for_a_loss() -> None:
    """Neither forward nor backward, of torch's and of Numba's: they take a second."""
    program = """
import sys, torch
from trainer.components.loss import next_token_loss
before = set(sys.modules)
hidden, weight = torch.ones(2, 4, requires_grad=True), torch.ones(5, 4, requires_grad=True)
next_token_loss(hidden, weight, torch.tensor([1, 2]), scale=1.0)[0].backward()
assert weight.grad is not None
print(sorted(name for name in set(sys.modules) - before if name.startswith(("torch", "numba", "sympy"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
