"""What a model costs, against figures of others and against torch's own counter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shared.lm import ModelConfig, Transformer
from shared.lm.accounting import count_parameters, forward_flops, optimizer_flops

GPT2_XL = ModelConfig(
    vocab_size=50_257,
    context_length=1_024,
    d_model=1_600,
    num_layers=48,
    num_heads=25,
    num_kv_heads=25,
    head_dim=64,
    d_ff=6_400,
    tie_embeddings=False,
)


def test_gpt2_xl_has_the_published_costs() -> None:
    """The check values of the project's issue on training."""
    assert count_parameters(GPT2_XL).total == 2_127_057_600
    flops = forward_flops(GPT2_XL)
    assert flops.total == 4_513_336_524_800
    assert round(flops.feed_forward / flops.total, 3) == 0.669
    assert forward_flops(GPT2_XL, length=16_384).total == 149_522_795_724_800
    assert optimizer_flops(GPT2_XL) == 14 * 2_127_057_600


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    kv_heads, group, half = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    heads, layers = kv_heads * group, draw(st.integers(1, 3))
    return ModelConfig(
        vocab_size=draw(st.integers(1, 90)),
        context_length=draw(st.integers(2, 40)),
        d_model=heads * draw(st.integers(1, 9)),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=2 * half,
        d_ff=draw(st.integers(1, 70)),
        qk_norm=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
        norm=draw(st.sampled_from(["pre", "post", "none"])),
        position=draw(st.sampled_from(["rope", "none"])),
        activation=draw(st.sampled_from(["swiglu", "silu", "relu2"])),
        logit_soft_cap=draw(st.sampled_from([0.0, 30.0])),
        value_residual=layers > 1 and draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None)
@given(configs(), st.integers(1, 3))
def test_counts_are_those_of_the_module(config: ModelConfig, sequences: int) -> None:
    """Parameters against the real module, operations against torch.utils.flop_counter."""
    model = Transformer(config)
    tokens = torch.zeros(sequences, config.context_length, dtype=torch.int64)
    by_name = {name: parameter.numel() for name, parameter in model.named_parameters()}
    counted = count_parameters(config)
    assert counted.total == config.num_parameters == sum(by_name.values())
    assert counted.attention == sum(n for name, n in by_name.items() if "norm" not in name and "self_attn" in name)
    assert counted.feed_forward == sum(n for name, n in by_name.items() if ".mlp." in name)
    assert counted.norms == sum(n for name, n in by_name.items() if "norm" in name)
    # Attention from single products, which the counter knows.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    assert forward_flops(config, sequences=sequences).total == counter.get_total_flops()


def test_sgd_has_no_moments_to_update() -> None:
    """w - rate (g + decay w): two products, a sum and a difference; momentum adds a product and a sum."""
    assert optimizer_flops(GPT2_XL, "sgd") == 4 * 2_127_057_600
    assert optimizer_flops(GPT2_XL, "sgd", momentum=0.9) == 6 * 2_127_057_600


def test_muon_counts_what_torch_runs() -> None:
    """The products of one update of torch.optim.Muon, by torch.utils.flop_counter; the rest is a few for each value."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    config = ModelConfig(
        vocab_size=7, context_length=8, d_model=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32, d_ff=96
    )
    model = Transformer(config)
    hidden = [p for name, p in model.named_parameters() if "_proj" in name]
    for parameter in hidden:
        parameter.grad = torch.ones_like(parameter)
    with FlopCounterMode(display=False) as counter:
        torch.optim.Muon(hidden, lr=1e-3).step()
    values = sum(p.numel() for p in hidden)
    others = config.num_parameters - values
    assert optimizer_flops(config, "muon") == counter.get_total_flops() + 12 * values + 14 * others
