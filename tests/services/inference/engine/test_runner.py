import asyncio

import torch

from services.inference.engine import Job, ModelRunner, RowRequest
from services.inference.engine.slot_row import Row
from shared.lm import ModelConfig, RopeConfig, SamplingParams, Transformer


def test_padding_of_the_vocabulary_is_neither_drawn_nor_reported() -> None:
    """Rows of the embedding beyond the tokenizer have no bytes that an answer could show."""
    config = ModelConfig(
        vocab_size=12, context_length=8, d_model=8, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=16,
        norm_eps=1e-5, qk_norm=False, tie_embeddings=False, rope=RopeConfig(),
    )  # fmt: skip
    valid = torch.arange(12) < 10
    runner = ModelRunner(Transformer(config).eval(), num_slots=1, max_length=8, valid_tokens=valid)
    logits = torch.zeros(1, 12)
    logits[0, 10:] = 50.0

    async def draw() -> tuple[int, set[int], float]:
        request = RowRequest((1,), SamplingParams(temperature=0), 1, frozenset(), num_logprobs=12)
        [drawn] = runner.sample([Row(request, Job(1), 0)], logits)
        return drawn.token, {token for token, _ in drawn.logprobs.top}, drawn.logprobs.chosen

    token, reported, logprob = asyncio.run(draw())
    assert token < 10
    assert reported == set(range(10))
    assert abs(logprob - torch.tensor(0.1).log().item()) < 1e-6
