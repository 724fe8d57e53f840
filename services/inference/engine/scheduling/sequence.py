"""One sequence inside the engine's core."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.inference.engine.runner.protocol import BLOCK_SIZE
from services.inference.engine.scheduling.block_pool import ROOT, chain_digest
from services.inference.engine.types import FinishReason, RowRequest, TokenLogprobs

PrefillKey = tuple[tuple[int, ...], int | None]
"""A prompt, and the log-probabilities that are wanted of it."""


@dataclass(slots=True, eq=False)
class Row:
    """A sequence and how far it has come.

    Attributes:
        job_id: The job that it belongs to.
        index: Its number in the job.
        age: The order of first admission, kept when the row is preempted; -1 before it.
        place: Its number at the runner; -1 while it waits.
        is_open: Whether the runner knows it.
        output: What it has generated.
        blocks: Its blocks, in the order of positions. A follower's are those that it will not share with its leader.
        num_computed: Tokens whose keys and values are in the blocks.
        num_cached: Prompt tokens that were found in the cache.
        digests: The names of its full blocks from the first on, as far as they were needed.
        prompt_logprobs: Of the prompt's tokens that have been computed, where they were asked for.
        prompt_done: Whether its `PromptEvent` is out.
        leader: The row whose prefill it shares.
        followers: The rows that share its prefill: they draw from the same logits.
    """

    job_id: int
    index: int
    request: RowRequest
    age: int = -1
    place: int = -1
    is_open: bool = False
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    digests: list[bytes] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_done: bool = False
    leader: "Row | None" = None
    followers: list["Row"] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt_ids) + len(self.output)

    @property
    def decoding(self) -> bool:
        """Whether all but the newest generated token is computed."""
        return bool(self.output) and self.num_computed == self.num_tokens - 1

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are still to be told: it must be computed then, not found."""
        return self.request.num_prompt_logprobs is not None and not self.prompt_done

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Prompt and output from `start` to `end`."""
        prompt = self.request.prompt_ids
        if end <= len(prompt):
            return prompt[start:end]
        generated = self.output[max(0, start - len(prompt)) : end - len(prompt)]
        return [*prompt[start:], *generated]

    def digest(self, index: int) -> bytes:
        """The name of full block `index`."""
        while len(self.digests) <= index:
            start = len(self.digests) * BLOCK_SIZE
            parent = self.digests[-1] if self.digests else ROOT
            self.digests.append(chain_digest(parent, self.tokens(start, start + BLOCK_SIZE)))
        return self.digests[index]

    @property
    def prefill_key(self) -> PrefillKey:
        """Equal for rows that can share a prefill to its end."""
        return self.request.prompt_ids, self.request.num_prompt_logprobs

    def append(self, token: int) -> FinishReason | None:
        """Take a generated token, and say whether the row ends with it."""
        self.output.append(token)
        if token in self.request.stop_ids:
            return "stop"
        return "length" if len(self.output) >= self.request.max_tokens else None
