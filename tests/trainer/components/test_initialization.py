from typing import Any, Literal

import pytest
import torch

from shared.lm import Transformer
from trainer.components.initialization import mimetic_attention_, zero_head_
from trainer.components.model import new_model
from trainer.settings.train import ModelSettings


def attention_parts(model: Transformer, layer: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_q W_k^T of a head, and the sum over heads of W_o W_v: what the head looks for, what the layer passes on."""
    c, attention = model.config, model.model.layers[layer].self_attn
    group, d = c.num_heads // c.num_kv_heads, c.head_dim
    query = attention.q_proj.weight[head * d : (head + 1) * d]
    key = attention.k_proj.weight[(head // group) * d : (head // group + 1) * d]
    passed_on = torch.zeros(c.d_model, c.d_model)
    for h in range(c.num_heads):
        value = attention.v_proj.weight[(h // group) * d : (h // group + 1) * d]
        passed_on += attention.o_proj.weight[:, h * d : (h + 1) * d] @ value
    return query.T @ key, passed_on


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_layers_pass_on_what_they_attend_to(num_kv_heads: int) -> None:
    settings = ModelSettings(d_model=32, num_layers=2, num_heads=4, num_kv_heads=num_kv_heads, qk_norm=True)
    model = new_model(settings, vocab_size=50, seed=0)
    mimetic_attention_(model)
    alike, passed_on = attention_parts(model, layer=1, head=0)
    # A product W^T W is symmetric with no negative eigenvalue: likeness is never held against a token.
    torch.testing.assert_close(alike, alike.T)
    assert torch.linalg.eigvalsh(alike).min() > -1e-5
    # With as many value channels as the stream has, all of it is passed on; with fewer, a projection of it.
    torch.testing.assert_close(passed_on @ passed_on, passed_on, atol=1e-5, rtol=0)
    assert round(passed_on.trace().item()) == num_kv_heads * 8


@pytest.mark.parametrize(("initialization", "alike"), [("mimetic", True), ("normal", False)])
def test_a_token_attends_to_its_like(initialization: Literal["normal", "mimetic"], alike: bool) -> None:
    """In a text that repeats twenty tokens, what a head brings to a token is that token's own content."""
    settings = ModelSettings(d_model=64, num_layers=1, num_heads=4, qk_norm=True, initialization=initialization)
    model = new_model(settings, vocab_size=200, seed=0)
    content = model.model.layers[0].input_layernorm(model.model.embed_tokens(torch.arange(20).repeat(3)[None]))
    brought, _ = model.model.layers[0].self_attn(content, model.model.rotary(torch.arange(60)))
    likeness = torch.cosine_similarity(content[0, 40:], brought[0, 40:], dim=-1).mean()
    assert likeness > 0.8 if alike else abs(likeness) < 0.3


def test_the_seed_alone_decides() -> None:
    settings = ModelSettings(d_model=32, num_layers=1, num_heads=2, initialization="mimetic")
    first, second = (new_model(settings, vocab_size=50, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_xavier_is_cs336s() -> None:
    """Assignment 1, section 3.4.1: variance 2 / (in + out) and embeddings of variance 1, all cut at three deviations.

    A normal distribution cut at three deviations has a standard deviation of 0.98658 of them.
    """
    settings = ModelSettings(
        d_model=512,
        d_ff=1_344,
        num_layers=2,
        num_heads=16,
        qk_norm=False,
        tie_embeddings=False,
        initialization="xavier",
    )
    model = new_model(settings, vocab_size=5_000, seed=0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == 1).all(), name
            continue
        rows, columns = parameter.shape
        std = 1.0 if "embed_tokens" in name else (2 / (rows + columns)) ** 0.5
        assert parameter.std().item() == pytest.approx(0.98658 * std, rel=0.01), name
        assert 2.9 * std < parameter.abs().max().item() <= 3 * std, name
        assert abs(parameter.mean().item()) < 0.01 * std, name


ZEROS: dict[str, set[str]] = {
    "none": set(),
    "blocks": {"self_attn.o_proj.weight", "mlp.down_proj.weight"},
    "head": {"lm_head.weight"},
    "all": {"self_attn.o_proj.weight", "mlp.down_proj.weight", "lm_head.weight"},
}


@pytest.mark.parametrize("outputs", ["none", "blocks", "head", "all"])
def test_zero_outputs_are_zero_and_all_else_is_as_without(outputs: Literal["none", "blocks", "head", "all"]) -> None:
    shape: dict[str, Any] = {"d_model": 32, "num_layers": 2, "tie_embeddings": False, "initialization": "normal"}
    plain = new_model(ModelSettings(**shape), 50, seed=0).state_dict()
    model = new_model(ModelSettings(**shape, zero_outputs=outputs), 50, seed=0)
    for name, weight in model.state_dict().items():
        is_zero = name.endswith(tuple(ZEROS[outputs]))
        assert torch.equal(weight, torch.zeros_like(weight) if is_zero else plain[name]), name
    tokens = torch.arange(8)[None]
    if outputs == "blocks":  # every block is the identity: what is left is the norm of the embedding
        torch.testing.assert_close(model.hidden(tokens), model.model.norm(model.model.embed_tokens(tokens)))
    if outputs in {"head", "all"}:  # every token is equally likely
        assert not model(tokens).any()


def test_zero_outputs_learn_within_three_steps() -> None:
    """The head's gradient comes first, then that of the zero projections, then that of all before them."""
    shape: dict[str, Any] = {"d_model": 32, "num_layers": 2, "tie_embeddings": False, "initialization": "normal"}
    model = new_model(ModelSettings(**shape, zero_outputs="all"), 50, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(0))
    moved = []
    for _ in range(3):
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved.append({name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])})
    assert moved[0] == {"lm_head.weight"}
    assert {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"} <= moved[1]
    assert moved[2] == {name for name, _ in model.named_parameters()}


def test_a_tied_head_is_never_set_to_zero() -> None:
    with pytest.raises(ValueError, match="tied"):
        zero_head_(new_model(ModelSettings(d_model=32, num_layers=1), 50, seed=0))
