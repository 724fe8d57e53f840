"""One sequence inside the engine."""

from dataclasses import dataclass, field

from services.inference.engine.request import FinishReason, RowRequest
from services.inference.engine.thread_job import ThreadJob
from shared.lm import SampledRow


@dataclass(slots=True, eq=False)
class Row:
    """A sequence and how far it has come; owned by the engine's thread.

    Attributes:
        index: The row's number in its job.
        slot: Its place in the KV cache; -1 while it waits.
        num_cached: Tokens whose keys and values are in the cache.
        last_token: The newest generated token, which is not in the cache yet.
        sampled: What drawing the next token depends on.
    """

    request: RowRequest
    job: ThreadJob
    index: int
    slot: int = -1
    num_cached: int = 0
    last_token: int = -1
    sampled: SampledRow = field(init=False)

    def __post_init__(self) -> None:
        self.sampled = SampledRow(self.request.params, frozenset(self.request.prompt_ids))

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for this row."""
        return self.job.wants(self.index)

    @property
    def prefilling(self) -> bool:
        """Whether a part of the prompt is not in the cache yet."""
        return self.num_cached < len(self.request.prompt_ids)

    def append(self, token: int) -> FinishReason | None:
        """Take a generated token, and say whether the row ends with it."""
        self.last_token = token
        self.sampled.append(token)
        if token in self.request.stop_ids:
            return "stop"
        if self.sampled.step >= self.request.max_tokens:
            return "length"
        return None
