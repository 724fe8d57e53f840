"""How the prompts share a step. See docs/explanation/engine.md for the policy."""

from collections.abc import Callable

from services.inference.engine.scheduling.block_pool import BlockPool
from services.inference.engine.scheduling.sequence import ScheduledSequence, Sequence
from services.inference.engine.types import BLOCK_SIZE, num_blocks_of

_LEAST_TOKENS = BLOCK_SIZE // 2
_TOKENS_BETWEEN_DELAYS = 200

TokensBeside = Callable[[int], int | None]
"""How many prompt tokens a step of so many decoding sequences has time for; None for unknown."""


class PrefillScheduler:
    """Cuts prompts into chunks, one a step: half of the budget to the oldest, the rest to those that need least.

    Args:
        pool: The KV cache.
        prefill_tokens: The most prompt tokens of a step.
        min_prefill_tokens: As many are allowed in any step, however few sequences decode.
        tokens_beside: Where known, decides instead of the number of sequences.
    """

    def __init__(
        self, pool: BlockPool, prefill_tokens: int, min_prefill_tokens: int, tokens_beside: TokensBeside
    ) -> None:
        self._pool = pool
        self._prefill_tokens = prefill_tokens
        self._min_prefill_tokens = min_prefill_tokens
        self._tokens_beside = tokens_beside

    def schedule(self, sequences: list[Sequence], decoding: list[Sequence]) -> list[ScheduledSequence]:
        """Return the chunks of a step.

        Args:
            sequences: Those within their prompt, the oldest first.
            decoding: Those that the step has a token of.
        """
        if not sequences:
            return []
        for sequence in sequences:
            self._use_cache_hits(sequence)
        left = {sequence: sequence.num_left for sequence in sequences}
        budget = self._budget(decoding, list(left.values()))
        oldest, *others = sequences
        others.sort(key=left.__getitem__)
        half = -(-budget // 2)
        share = half if budget <= BLOCK_SIZE else num_blocks_of(half) * BLOCK_SIZE
        ends = {oldest: _chunk_end(oldest, share)}
        filling = _filled_blocks(oldest, ends[oldest])
        budget -= ends[oldest] - oldest.num_computed
        for sequence in others:
            if budget and not _waits_for_block(sequence, filling):
                ends[sequence] = _chunk_end(sequence, budget)
                filling.update(_filled_blocks(sequence, ends[sequence]))
                budget -= ends[sequence] - sequence.num_computed
        ends[oldest] = _chunk_end(oldest, ends[oldest] - oldest.num_computed + budget)
        return [ScheduledSequence(sequence, sequence.num_computed, end) for sequence, end in ends.items()]

    def _budget(self, decoding: list[Sequence], left: list[int]) -> int:
        """Prompt tokens of the step: all where no stream waits; else what delays streams little, or all but rarely.

        Args:
            decoding: Sequences that wait for their next token.
            left: For each that waits for its first one, the tokens of its prompt that are left.
        """
        if not decoding:
            return self._prefill_tokens
        tokens = self._tokens_beside(len(decoding))
        if tokens is None:
            share = num_blocks_of(len(decoding)) * BLOCK_SIZE
            return min(self._prefill_tokens, max(share, self._min_prefill_tokens))
        # A prompt's token costs less than one of the decoding sequences, which reads a cache and is sampled.
        tokens = min(self._prefill_tokens, max(tokens, _LEAST_TOKENS, len(decoding)))
        is_worth_it = sum(left) > tokens and len(left) >= len(decoding)
        if not is_worth_it or any(one.num_tokens < one.next_full_prefill_at for one in decoding):
            return tokens
        for one in decoding:
            one.next_full_prefill_at = one.num_tokens + _TOKENS_BETWEEN_DELAYS
        return self._prefill_tokens

    def _use_cache_hits(self, sequence: Sequence) -> None:
        """Use blocks that another sequence has filled since this one was admitted."""
        if sequence.needs_prompt_logprobs or sequence.num_computed % BLOCK_SIZE:
            return
        for index in range(sequence.num_computed // BLOCK_SIZE, sequence.num_cacheable_blocks):
            block = self._pool.lookup(sequence.digest(index))
            if block is None:
                return
            self._pool.add_reference(block)
            self._pool.release([sequence.blocks[index]])
            sequence.blocks[index] = block
            sequence.num_computed += BLOCK_SIZE
            if not sequence.output:
                sequence.num_cached = sequence.num_computed


def _chunk_end(sequence: Sequence, num_tokens: int) -> int:
    """Where a chunk of at most `num_tokens` ends: with the prompt, or with a block if it reaches a block's end."""
    end = sequence.num_computed + num_tokens
    if end >= sequence.num_tokens:
        return sequence.num_tokens
    whole = end - end % BLOCK_SIZE
    return whole if whole > sequence.num_computed else end


def _filled_blocks(sequence: Sequence, end: int) -> set[bytes]:
    """Digests of the blocks that become full when the sequence is computed up to `end`."""
    return {sequence.digest(index) for index in range(sequence.num_computed // BLOCK_SIZE, end // BLOCK_SIZE)}


def _waits_for_block(sequence: Sequence, filling: set[bytes]) -> bool:
    """Whether the sequence's next block is being filled in this step: it will be a cache hit in the next one."""
    index = sequence.num_computed // BLOCK_SIZE
    if sequence.needs_prompt_logprobs or sequence.num_computed % BLOCK_SIZE or index >= sequence.num_cacheable_blocks:
        return False
    return sequence.digest(index) in filling
