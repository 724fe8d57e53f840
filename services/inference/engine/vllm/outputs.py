"""vLLM's outputs of a sequence as the events that a request handler reads."""

from collections.abc import Iterator, Mapping
from typing import Any

from services.inference.engine.errors import EngineError
from services.inference.engine.types import (
    FinishReason,
    PromptEvent,
    SequenceEvent,
    SequenceRequest,
    TokenEvent,
    TokenLogprobs,
)


class SequenceOutputs:
    """Turns `vllm.RequestOutput`s that hold what is new into events.

    Args:
        request_id: The engine's number of the request.
        index: The sequence's number in it.
        request: The sequence.
        valid_ids: The ids that have a token; None: all.
    """

    def __init__(
        self, request_id: int, index: int, request: SequenceRequest, valid_ids: frozenset[int] | None = None
    ) -> None:
        self._id = request_id, index
        self._request = request
        self._valid_ids = valid_ids
        self._prompt_reported = False

    def events(self, output: Any) -> Iterator[SequenceEvent]:
        """The events of one output.

        Raises:
            EngineError: vLLM ended the sequence, but not for a stop token or its length.
        """
        if not self._prompt_reported:
            self._prompt_reported = True
            yield self._prompt_event(output)
        if not self._request.max_tokens:
            return
        (completion,) = output.outputs
        tokens, last = completion.token_ids, len(completion.token_ids) - 1
        if output.finished and (last < 0 or completion.finish_reason not in ("stop", "length")):
            raise EngineError(f"vLLM ended the sequence: {completion.finish_reason}")
        for position, token in enumerate(tokens):
            finish: FinishReason | None = completion.finish_reason if output.finished and position == last else None
            wants_logprobs = self._request.num_logprobs is not None
            logprobs = self._logprobs(token, completion.logprobs[position]) if wants_logprobs else None
            yield TokenEvent(*self._id, token, logprobs, finish)

    def _prompt_event(self, output: Any) -> PromptEvent:
        logprobs = None
        if self._request.num_prompt_logprobs is not None:
            pairs = zip(self._request.prompt_ids[1:], output.prompt_logprobs[1:], strict=True)
            logprobs = tuple(self._logprobs(token, found, self._request.num_prompt_logprobs) for token, found in pairs)
        finish: FinishReason | None = None if self._request.max_tokens else "length"
        return PromptEvent(*self._id, output.num_cached_tokens or 0, logprobs, finish)

    def _logprobs(self, token: int, found: Mapping[int, Any], num_top: int | None = None) -> TokenLogprobs:
        """The likeliest ids of one position: vLLM has the token itself among them, with its rank."""
        num_top = self._request.num_logprobs or 0 if num_top is None else num_top
        valid = (item for item in found.items() if self._valid_ids is None or item[0] in self._valid_ids)
        ranked = sorted(valid, key=lambda item: item[1].rank)
        top = tuple((other, entry.logprob) for other, entry in ranked[:num_top] if entry.rank <= num_top)
        return TokenLogprobs(found[token].logprob, top)
