"""The model against transformers, and its cached path against the full one."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from shared.lm import KVCache, Llama3Scaling, ModelConfig, RopeConfig, Transformer

LLAMA3 = RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 128))
ARCHITECTURES = {
    "grouped heads, explicit head_dim, tied": {},
    "untied": {"tie_embeddings": False},
    "one key head": {"num_kv_heads": 1},
    "no grouping": {"num_kv_heads": 4, "head_dim": 8},
    "theta": {"rope": RopeConfig(1_000_000.0)},
    "llama3 scaling": {"rope": LLAMA3},
    "query/key norm": {"qk_norm": True},
    "query/key norm, untied": {"qk_norm": True, "tie_embeddings": False, "rope": RopeConfig(1_000_000.0)},
}


@pytest.fixture(scope="module", params=ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def pair(request, make_model):
    """A random model of ours and transformers' own model with the same weights."""
    model = make_model(**request.param)
    family = (Qwen3Config, Qwen3ForCausalLM) if model.config.qk_norm else (LlamaConfig, LlamaForCausalLM)
    peer = family[1](family[0](**model.config.to_hf())).eval().requires_grad_(False)
    result = peer.load_state_dict(model.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys == ([] if model.lm_head else ["lm_head.weight"])
    peer.tie_weights()
    return model, peer


def random_tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_tokens", [1, 300])
def test_logits_equal_transformers(pair, num_tokens):
    model, peer = pair
    tokens = random_tokens(2, num_tokens)
    torch.testing.assert_close(model(tokens), peer(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "changes", [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_theta": 1e6}, {}]
)
def test_theta_is_followed_over_1000_tokens_wherever_it_stands(changes):
    """B93: a short prompt would hide a wrong theta."""
    hf_config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        **changes,
    )
    torch.manual_seed(0)
    peer = LlamaForCausalLM(hf_config).eval().requires_grad_(False)
    written = {**hf_config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    model = Transformer(ModelConfig.from_hf(written)).requires_grad_(False)
    model.load_state_dict(peer.state_dict())
    tokens = random_tokens(1, 1000)
    torch.testing.assert_close(model(tokens), peer(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunks", [[1] * 24, [24], [5, 1, 11, 2, 1, 4]], ids=["one by one", "at once", "uneven"])
def test_the_cached_path_equals_the_full_pass(make_model, chunks):
    model = make_model(rope=LLAMA3, qk_norm=True)
    tokens = random_tokens(1, 24)
    cache = KVCache(model.config, 3, 24)
    parts, position = [], 0
    for chunk in chunks:
        piece = tokens[:, position : position + chunk]
        hidden = model.hidden(piece, cache, torch.tensor([1]), torch.tensor([position]))
        parts.append(model.logits(hidden))
        position += chunk
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("slots", [[0, 1, 2], [3, 0, 2]], ids=["consecutive slots", "scattered slots"])
def test_rows_at_different_positions_do_not_see_each_other(make_model, slots):
    """B71: prompts of 1, 7 and 30 tokens, then decoded in one batch."""
    model = make_model()
    rows = [random_tokens(1, length + 5, seed=length) for length in (1, 7, 30)]
    cache = KVCache(model.config, 4, 40)
    for slot, row in zip(slots, rows, strict=True):
        model.hidden(row[:, :-5], cache, torch.tensor([slot]))
    for step in range(5, 0, -1):
        tokens = torch.cat([row[:, row.shape[1] - step : row.shape[1] - step + 1] for row in rows])
        positions = torch.tensor([row.shape[1] - step for row in rows])
        together = model.logits(model.hidden(tokens, cache, torch.tensor(slots), positions))
        for index, row in enumerate(rows):
            alone = model(row[:, : row.shape[1] - step + 1])[0, -1]
            torch.testing.assert_close(together[index, 0], alone, rtol=0, atol=1e-5)


def test_a_used_slot_tells_nothing_to_its_next_sequence(make_model):
    """B72, with the worst that a failed sequence can leave behind: NaN, which survives a weight of 0."""
    model = make_model()
    poisoned = make_model()
    poisoned.model.layers[0].self_attn.v_proj.weight[0, 0] = torch.nan
    cache = KVCache(model.config, 2, 40)
    poisoned.hidden(random_tokens(2, 40), cache)
    assert cache.values.isnan().any()
    long, short = random_tokens(1, 30, seed=2), random_tokens(1, 3, seed=3)
    model.hidden(long[:, :-1], cache, torch.tensor([1]))
    model.hidden(short[:, :-1], cache, torch.tensor([0]))
    last = torch.stack([short[0, -1:], long[0, -1:]])
    logits = model.logits(model.hidden(last, cache, positions=torch.tensor([2, 29])))
    torch.testing.assert_close(logits[0, 0], model(short)[0, -1], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits[1, 0], model(long)[0, -1], rtol=0, atol=1e-5)


def test_more_tokens_than_the_context_are_refused(make_model):
    with pytest.raises(ValueError, match="513 tokens exceed the context length of 512"):
        make_model()(random_tokens(1, 513))


def test_slots_without_a_cache_are_refused(make_model):
    with pytest.raises(ValueError, match="need a cache"):
        make_model().hidden(random_tokens(1, 2), positions=torch.tensor([3]))


def test_initial_weights_have_the_documented_spread(make_config):
    torch.manual_seed(0)
    config = make_config(d_model=128, d_ff=256, num_layers=8, initializer_range=0.02)
    weights = Transformer(config).state_dict()
    for name, expected in [
        ("model.embed_tokens.weight", 0.02),
        ("model.layers.3.self_attn.q_proj.weight", 0.02),
        ("model.layers.3.self_attn.o_proj.weight", 0.02 / 4),
        ("model.layers.3.mlp.down_proj.weight", 0.02 / 4),
    ]:
        assert weights[name].std().item() == pytest.approx(expected, rel=0.05), name
    assert torch.equal(weights["model.norm.weight"], torch.ones(128))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_single_precision(make_model, dtype):
    model, half = make_model(initializer_range=0.05), make_model(initializer_range=0.05).to(dtype)
    tokens = random_tokens(1, 200)
    logits = half(tokens)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), model(tokens), rtol=0, atol=0.02)


def test_gradients_reach_every_weight(make_config):
    model = Transformer(make_config(qk_norm=True, tie_embeddings=False))
    model(random_tokens(2, 9)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
