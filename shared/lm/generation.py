"""Generating one sequence, for samples during training and for the terminal."""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from shared.lm.errors import SamplingError
from shared.lm.kv_cache import KVCache
from shared.lm.sampling import SampledRow, sample
from shared.lm.sampling_params import NO_TOKEN, SamplingParams
from shared.lm.transformer import Transformer

_PREFILL_TOKENS = 512


def generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    max_tokens: int,
    eos_token_ids: Collection[int] = (),
    valid_tokens: Tensor | None = None,
) -> Iterator[int]:
    """Continue a prompt, one id at a time.

    Ends after `max_tokens`, when the context is full, or when the model samples an id of `eos_token_ids`, which is not
    yielded. The global random state is neither read nor changed.

    Args:
        model: On any device; the cache takes the weights' device and dtype.
        prompt_ids: At least one id, fewer than the context length.
        params: Sampling parameters.
        max_tokens: The most ids to yield.
        eos_token_ids: Ids that end the sequence; pass none to ignore them.
        valid_tokens: bool [vocab_size], see `sample`.

    Raises:
        ValueError: The prompt is empty, too long, or holds an id outside of the vocabulary, or max_tokens is negative.
        SamplingError: A logit is NaN or infinite.
    """
    config = model.config
    if not 1 <= len(prompt_ids) < config.context_length:
        raise ValueError(
            f"the prompt must have 1 to {config.context_length - 1} tokens, one fewer than the context, "
            f"got {len(prompt_ids)}"
        )
    for index, token in enumerate(prompt_ids):
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"prompt token {index} is {token}, outside of the vocabulary of {config.vocab_size}")
    if max_tokens < 0:
        raise ValueError(f"max_tokens must be at least 0, got {max_tokens}")
    return _generate(
        model, prompt_ids, params, max_tokens=max_tokens, eos_token_ids=eos_token_ids, valid_tokens=valid_tokens
    )


def _generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    max_tokens: int,
    eos_token_ids: Collection[int],
    valid_tokens: Tensor | None,
) -> Iterator[int]:
    length = min(len(prompt_ids) + max_tokens, model.config.context_length)
    weight = model.model.embed_tokens.weight
    cache = KVCache(model.config, 1, length, weight.device, weight.dtype)
    row = SampledRow(params, frozenset(prompt_ids))
    new, position = list(prompt_ids), 0
    while position + len(new) < length:
        token = sample(_next_logits(model, cache, new, position), [row], valid_tokens=valid_tokens)[0]
        if token == NO_TOKEN:
            raise SamplingError(f"the model's logits after {position + len(new)} tokens are NaN or infinite")
        if token in eos_token_ids:
            return
        yield token
        row.append(token)
        position += len(new)
        new = [token]


@torch.inference_mode()
def _next_logits(model: Transformer, cache: KVCache, new: list[int], position: int) -> Tensor:
    """Run the new tokens in chunks of bounded memory, and return the logits after the last one, [1, vocab_size]."""
    device = cache.keys.device
    for start in range(0, len(new), _PREFILL_TOKENS):
        tokens = torch.tensor([new[start : start + _PREFILL_TOKENS]], device=device)
        hidden = model.hidden(tokens, cache, positions=torch.tensor([position + start]))
    return model.logits(hidden[:, -1])
