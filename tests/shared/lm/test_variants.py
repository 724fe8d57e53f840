"""Every supported variant of the architecture, written by transformers, read and run here: it is the oracle."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shared.lm import SamplingParams, Transformer, generate, load_weights, read_config
from shared.lm.accounting import count_parameters
from shared.lm.weights import save_weights
from tests.shared.lm.variants import DTYPES, NEW_TOKENS, ROPES, VARIANTS, Variant, WrittenVariant

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def written(request, tmp_path_factory):
    return request.param.write(tmp_path_factory.mktemp("variant"))


def check(written: WrittenVariant) -> Transformer:
    config = read_config(written.folder)
    model, notes = load_weights(written.folder, config, dtype=torch.float32)
    assert notes == ()
    model.requires_grad_(False)
    torch.testing.assert_close(model(written.prompt)[0], written.logits, rtol=0, atol=1e-4)
    return model


def test_logits_and_greedy_tokens_equal_transformers(written):
    model = check(written)
    ids = generate(model, written.prompt[0].tolist(), GREEDY, max_tokens=NEW_TOKENS)
    assert list(ids) == written.greedy
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == model.config.num_parameters == count_parameters(model.config).total


def test_what_we_write_opens_in_transformers_with_equal_logits(written, tmp_path):
    config = read_config(written.folder)
    model, _ = load_weights(written.folder, config, dtype=torch.float32)
    save_weights(model, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    assert read_config(tmp_path) == config
    peer, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float32)
    assert not loading["missing_keys"] | loading["unexpected_keys"] | loading["mismatched_keys"]
    with torch.no_grad():
        torch.testing.assert_close(peer(written.prompt).logits[0], written.logits, rtol=0, atol=1e-4)


def test_all_is_trained(written):
    """Gradients reach every weight, biases too, and are those of transformers."""
    model, _ = load_weights(written.folder, read_config(written.folder), dtype=torch.float32)
    peer = AutoModelForCausalLM.from_pretrained(written.folder, dtype=torch.float32)
    for logits in (model.train()(written.prompt), peer(written.prompt).logits):
        logits.float().square().mean().backward()
    expected = dict(peer.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        scale = expected[name].grad.abs().max().item() + 1e-6
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=0, atol=1e-3 * scale, msg=name)


def test_new_biases_are_zero(tmp_path):
    VARIANTS["llama, biases"].write(tmp_path)
    weights = Transformer(read_config(tmp_path)).state_dict()
    biases = [weight for name, weight in weights.items() if name.endswith(".bias")]
    assert len(biases) == 2 * 4
    assert not any(bias.any() for bias in biases)


@pytest.mark.parametrize("name", ["q_proj.bias", "o_proj.bias"])
def test_a_bias_that_the_architecture_does_not_have_is_refused(tmp_path, name):
    """Weights decide too: transformers drops what it does not know with a warning."""
    VARIANTS["linear"].write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, f"model.layers.0.self_attn.{name}": torch.zeros(32)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"the weights hold model\.layers\.0\.self_attn\.{name}"):
        load_weights(tmp_path, read_config(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ["llama", "llama with biases", "mistral", "qwen2", "qwen3"])
def test_the_whole_matrix(tmp_path, family, rope):
    changes = {"llama with biases": {"attention_bias": True}, "mistral": {"sliding_window": None}}.get(family, {})
    kinds = itertools.product([True, False], [1, 2, 4], DTYPES, [True, False])
    for number, (tied, num_kv_heads, dtype, sharded) in enumerate(kinds):
        variant = Variant(family.split()[0], rope, tied, num_kv_heads, dtype, sharded, number % 2 == 1, changes)
        check(variant.write(tmp_path / str(number)))
