"""Blocks of the KV cache, and which requests can never run. Both sides of the process boundary check with this."""

from services.inference.engine.errors import RequestTooLargeError
from services.inference.engine.types import SequenceRequest

BLOCK_SIZE = 16
"""Tokens of one block of the KV cache."""


def num_blocks_of(num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def blocks_needed(num_prompt_tokens: int, max_tokens: int) -> int:
    """Blocks that a sequence holds at its end: its last token is never run, so its keys and values need no room."""
    return num_blocks_of(max(num_prompt_tokens, num_prompt_tokens + max_tokens - 1))


def check_fits_cache(request: SequenceRequest, num_blocks: int) -> None:
    """Refuse a sequence that needs more than the `num_blocks` blocks of the KV cache.

    Raises:
        RequestTooLargeError: Names the limit.
    """
    num_prompt_tokens, max_tokens = len(request.prompt_ids), request.max_tokens
    needed = blocks_needed(num_prompt_tokens, max_tokens)
    if needed > num_blocks:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} prompt tokens and max_tokens {max_tokens} need {needed * BLOCK_SIZE} tokens of KV "
            f"cache, and it holds {num_blocks * BLOCK_SIZE}; shorten the prompt, lower max_tokens, or raise "
            "OWNLM_KV_CACHE_BYTES"
        )
