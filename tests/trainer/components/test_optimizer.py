import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared.lm import ModelConfig, Transformer
from trainer.components.optimizer import build_optimizer, set_learning_rate
from trainer.errors import UsageError

SHAPE = {
    "vocab_size": 11, "context_length": 8, "d_model": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
    "head_dim": 8, "d_ff": 24,
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "momentum"])


def build(model: Transformer, name: str, learning_rate: float = 0.5) -> torch.optim.Optimizer:
    momentum = 0.9 if name == "momentum" else 0.0
    return build_optimizer(
        model,
        name="sgd" if momentum else name,  # type: ignore[arg-type]
        learning_rate=learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        momentum=momentum,
    )


@NAMES
def test_only_matrices_decay_and_a_tied_one_once(name: str) -> None:
    """B91: with zero gradients, a step is the decay alone: a factor of 1 - rate * decay."""
    model = Transformer(ModelConfig(**SHAPE, qk_norm=True))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build(model, name)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1.0 if "norm" in name else 0.95
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)
    assert "model.embed_tokens.weight" in before


@NAMES
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_group(name: str, tied: bool) -> None:
    """B91."""
    model = Transformer(ModelConfig(**SHAPE, tie_embeddings=tied))
    grouped = [id(parameter) for group in build(model, name).param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


def test_muon_takes_the_matrices_within_blocks_alone() -> None:
    model = Transformer(ModelConfig(**SHAPE, tie_embeddings=False))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, decayed, others = build(model, "muon").param_groups
    assert "momentum" in muon
    assert {names[id(p)] for p in muon["params"]} == {
        *(f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "qkvo"),
        *(f"model.layers.0.mlp.{which}_proj.weight" for which in ("gate", "up", "down")),
    }
    assert {names[id(p)] for p in decayed["params"]} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert all("norm" in names[id(p)] for p in others["params"])


def test_muons_update_is_the_polar_factor_of_the_gradient_at_adamws_size() -> None:
    """Against numpy's SVD: Newton-Schulz ends with singular values of 0.5 to 1.5, times 0.2 * sqrt(longer side).

    Sources: Keller Jordan's post on Muon for the range, arXiv 2502.16982, equation 4, for the factor.
    """
    model = Transformer(ModelConfig(**SHAPE))
    optimizer = build(model, "muon", learning_rate=1.0)
    weight = model.model.layers[0].mlp.up_proj.weight
    before = weight.detach().double().numpy().copy()
    gradient = np.random.default_rng(0).normal(size=before.shape)
    weight.grad = torch.from_numpy(gradient).float()
    optimizer.step()
    update = before * (1 - 0.1) - weight.detach().double().numpy()
    left, _, right = np.linalg.svd(gradient, full_matrices=False)
    singular_values = np.diag(left.T @ (update / (0.2 * 24**0.5)) @ right.T)
    assert (singular_values > 0.5).all()
    assert (singular_values < 1.5).all()
    rebuilt = left @ np.diag(singular_values) @ right * 0.2 * 24**0.5
    assert np.abs(update - rebuilt).max() < 0.02 * np.abs(update).max() + 0.02  # bfloat16


@NAMES
def test_the_rate_reaches_every_group(name: str) -> None:
    optimizer = build(Transformer(ModelConfig(**SHAPE)), name)
    set_learning_rate(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}
    before = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    set_learning_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    after = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@NAMES
def test_it_goes_on_from_its_state_to_the_bit(name: str) -> None:
    """B85: the state is not rebuilt, and the counter of steps goes on."""

    def step(model: Transformer, optimizer: torch.optim.Optimizer, seed: int) -> None:
        tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(seed))
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    model = Transformer(ModelConfig(**SHAPE))
    optimizer = build(model, name, 0.01)
    for seed in range(3):
        step(model, optimizer, seed)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = Transformer(ModelConfig(**SHAPE))
    other.load_state_dict(model.state_dict())
    resumed = build(other, name, 0.01)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(3, 5):
        step(model, optimizer, seed)
        step(other, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    steps = {state["step"].item() for state in resumed.state.values() if "step" in state}
    assert steps == ({5.0} if name in ("adamw", "muon") else set())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_its_formula(momentum: float) -> None:
    """v = momentum v + (g + decay w), w = w - rate v (Sutskever et al. 2013, as torch has it), in float64."""
    model = Transformer(ModelConfig(**SHAPE))
    optimizer = build_optimizer(
        model, name="sgd", learning_rate=0.25, betas=(0.9, 0.95), weight_decay=0.1, momentum=momentum
    )
    weight = model.model.layers[0].mlp.up_proj.weight
    expected, velocity = weight.detach().double().numpy().copy(), np.zeros(tuple(weight.shape))
    for seed in range(3):
        gradient = np.random.default_rng(seed).normal(size=expected.shape)
        weight.grad = torch.from_numpy(gradient).float()
        optimizer.step()
        velocity = momentum * velocity + gradient + 0.1 * expected
        expected -= 0.25 * velocity
    assert np.abs(weight.detach().numpy() - expected).max() < 1e-5
    kept = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    assert len(kept) == (1 if momentum else 0)  # for the one parameter with a gradient


def test_an_older_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UsageError, match=r"muon needs torch 2\.9"):
        build(Transformer(ModelConfig(**SHAPE)), "muon")
