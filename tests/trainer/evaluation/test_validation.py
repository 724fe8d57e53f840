import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.bpe import Tokenizer
from shared.lm import ModelConfig, Transformer
from trainer.compute.device import choose_device
from trainer.evaluation.scoring import Evaluation
from trainer.evaluation.validation import evaluate, token_byte_lengths

CONTEXT = 16


class Uniform(nn.Module):
    """Every id is equally likely."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    @property
    def output_weight(self) -> Tensor:
        return torch.zeros(self.vocab_size, 1)

    def hidden(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 1)

    def cap(self, logits: Tensor) -> Tensor:
        return logits


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "d_ff": 48}
    return Transformer(ModelConfig(vocab_size=300, context_length=CONTEXT, **shape))


def score(
    model: nn.Module, tokens: "np.ndarray", batch_size: int = 4, byte_lengths: Tensor | None = None
) -> Evaluation:
    lengths = torch.ones(300, dtype=torch.int64) if byte_lengths is None else byte_lengths
    return evaluate(
        model, [tokens], lengths, context_length=CONTEXT, batch_size=batch_size, device=choose_device("cpu")
    )


def test_the_loss_does_not_depend_on_the_batch_size(model: Transformer) -> None:
    """B89."""
    tokens = np.random.default_rng(0).integers(0, 300, 16 * 7 + 5)
    results = [score(model, tokens, batch_size) for batch_size in (1, 3, 8)]
    assert {result.tokens for result in results} == {16 * 7 + 4}
    assert [result.loss for result in results] == pytest.approx([results[0].loss] * 3, abs=1e-5)
    assert [result.bits_per_byte for result in results] == pytest.approx([results[0].bits_per_byte] * 3, abs=1e-5)


@pytest.mark.parametrize("count", [2, CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_what_exists_is_scored_and_nothing_else(model: Transformer, count: int) -> None:
    """B77: the mean is over the real targets, window by window, computed here one token at a time."""
    tokens = np.random.default_rng(1).integers(0, 300, count)
    nats = []
    for target in range(1, count):
        start = (target - 1) // CONTEXT * CONTEXT
        logits = model(torch.tensor(tokens[start:target]).unsqueeze(0))[0, -1].double()
        nats.append((torch.logsumexp(logits, 0) - logits[tokens[target]]).item())
    result = score(model, tokens)
    assert result.tokens == count - 1
    assert result.loss == pytest.approx(sum(nats) / len(nats), abs=1e-5)


def test_bits_per_byte_of_an_even_guess(tokenizer_folder: Path) -> None:
    """An even guess costs log2(vocab_size) bits per token; special tokens count on neither side."""
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    vocab_size = tokenizer.vocab_size
    texts = ["the naïve cat", "the old dog"]
    ids = [id_ for text in texts for id_ in [*tokenizer.encode(text), tokenizer.end_of_text_id]]
    lengths = token_byte_lengths(tokenizer, torch.ones(vocab_size, dtype=torch.bool))
    result = score(Uniform(vocab_size), np.array([tokenizer.end_of_text_id, *ids]), byte_lengths=lengths)
    num_text_tokens = len(ids) - len(texts)
    num_bytes = sum(len(text.encode()) for text in texts)
    assert result.loss == pytest.approx(math.log(vocab_size))
    assert result.bits_per_byte == pytest.approx(num_text_tokens * math.log2(vocab_size) / num_bytes)


def test_tokens_that_stand_for_no_bytes_have_no_bits_per_byte() -> None:
    result = score(Uniform(300), np.array([1, 1, 1]), byte_lengths=torch.zeros(300, dtype=torch.int64))
    assert result.bits_per_byte is None


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_random_state_stay_as_they_were(model: Transformer, training: bool) -> None:
    """B86."""
    model.train(training)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[union-attr,index]
    tokens = np.random.default_rng(0).integers(0, 300, 100)
    assert score(model, tokens) == score(model, tokens)
    assert model.training is training
    assert (torch.get_rng_state() == state).all()
    assert (np.random.get_state()[1] == numpy_state).all()  # type: ignore[index]
    assert all(parameter.grad is None for parameter in model.parameters())
