"""What can never run, from numbers alone: either side of the pipe may ask."""

from services.inference.engine.runner.protocol import BLOCK_SIZE
from services.inference.engine.types import RequestTooLargeError


def blocks_needed(num_prompt_tokens: int, max_tokens: int) -> int:
    """Blocks that a row holds at its end: its last token is never run, so its keys and values need no room."""
    return -(-max(num_prompt_tokens, num_prompt_tokens + max_tokens - 1) // BLOCK_SIZE)


def check_fits(num_rows: int, num_prompt_tokens: int, max_tokens: int, *, num_places: int, num_blocks: int) -> None:
    """Refuse what can never run.

    Args:
        num_rows: Rows of the request.
        num_prompt_tokens: Tokens of the longest of its prompts.
        max_tokens: Tokens that may follow it.
        num_places: Rows that may run or wait at the same time.
        num_blocks: Blocks of the KV cache.

    Raises:
        RequestTooLargeError: Names the limit.
    """
    if num_rows > num_places:
        raise RequestTooLargeError(f"{num_rows} sequences, and the limit is {num_places} that run or wait")
    needed = blocks_needed(num_prompt_tokens, max_tokens)
    if needed > num_blocks:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} tokens of prompt and up to {max_tokens} to follow need {needed * BLOCK_SIZE} tokens "
            f"of KV cache, and it holds {num_blocks * BLOCK_SIZE}; ask for fewer, or raise OWNLM_KV_CACHE_BYTES"
        )
