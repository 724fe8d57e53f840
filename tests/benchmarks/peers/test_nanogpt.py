"""The nanoGPT-style model against transformers' GPT-2, which is the architecture that nanoGPT reproduces."""

import pytest
import torch

from benchmarks.peers.nanogpt import GPT, GPTConfig, build_optimizer, train_step

CONFIG = GPTConfig(vocab_size=50, block_size=16, n_layer=2, n_head=4, n_embd=32)


def test_logits_are_those_of_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = GPT(CONFIG)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=50, n_positions=16, n_layer=2, n_head=4, n_embd=32, activation_function="gelu", resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in theirs.transformer.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
                continue
            ours = model.get_parameter(name.replace("mlp.", ""))
            is_transposed = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))  # Conv1D
            parameter.copy_(ours.T if is_transposed else ours)
    tokens = torch.randint(50, (3, 16))
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def test_steps_learn_a_batch() -> None:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = build_optimizer(model, learning_rate=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    inputs, targets = torch.randint(50, (2, 2, 16))
    losses = [train_step(model, optimizer, inputs, targets).item() for _ in range(30)]
    assert losses[0] == pytest.approx(3.9, abs=0.2)  # log 50
    assert losses[-1] < 0.5
