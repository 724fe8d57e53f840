import torch

from shared.lm import ModelConfig, Transformer
from trainer.optimizer import build_optimizer, set_learning_rate

SHAPE = {
    "vocab_size": 11, "context_length": 8, "d_model": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
    "head_dim": 8, "d_ff": 24,
}  # fmt: skip


def test_only_matrices_decay_and_a_tied_one_once() -> None:
    """B91: with zero gradients, AdamW's step is the decay alone: a factor of 1 - rate * decay."""
    model = Transformer(ModelConfig(**SHAPE, qk_norm=True))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, learning_rate=0.5, betas=(0.9, 0.95), weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1.0 if "norm" in name else 0.95
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)
    assert "model.embed_tokens.weight" in before


def test_every_parameter_is_in_one_group() -> None:
    """B91."""
    model = Transformer(ModelConfig(**SHAPE, tie_embeddings=False))
    groups = build_optimizer(model, learning_rate=1.0, betas=(0.9, 0.95), weight_decay=0.1).param_groups
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


def test_the_rate_reaches_every_group() -> None:
    model = Transformer(ModelConfig(**SHAPE))
    optimizer = build_optimizer(model, learning_rate=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
