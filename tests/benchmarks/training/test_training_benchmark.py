"""The arithmetic of the benchmark; its figures are no test's business."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.training.contenders import flops_per_token
from benchmarks.training.products import FLOPS_PER_TOKEN, products
from benchmarks.training.shape import D_FF, LAYERS, VOCAB_SIZE, WIDTH
from benchmarks.training.targets import judge


def result(trainer: str, tokens_per_second: float, utilization: float = 0.9) -> dict[str, object]:
    return {
        "trainer": trainer,
        "batch": 8,
        "compiled": False,
        "dtype": "float32",
        "tokens_per_second": tokens_per_second,
        "utilization": utilization,
    }


def test_operations_of_a_token() -> None:
    """By hand: 4 layers of 4 x 512² + 3 x 512 x 1,344 weights and 512 x 10,000 at the output, 6 operations each; and in
    each layer 2 products of attention, forward and twice backward, of 2 x 256 x 512 operations."""
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB_SIZE,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                intermediate_size=D_FF,
                tie_word_embeddings=False,
            )
        )
    assert FLOPS_PER_TOKEN == 105_431_040
    assert flops_per_token(model, tied=False) == 105_431_040 + 6_291_456


def test_products_are_those_of_a_step() -> None:
    with torch.profiler.profile(with_flops=True) as profile:
        products(1, onednn=False)()
    assert sum(event.flops for event in profile.key_averages()) == 256 * FLOPS_PER_TOKEN


def test_a_verdict_is_of_the_peers_at_the_same_setting() -> None:
    results = [result("ownlm", 1100), result("transformers", 1000), result("nanoGPT-style", 1200)]
    results.append({**result("transformers", 5000), "batch": 32})
    verdicts = judge(results, {"share": 0.02}, 14.9)
    assert [verdict.met for verdict in verdicts] == [True, False, True, False, True]
    assert verdicts[1].measured == "0.92 times"
