"""Answers in the shape of OpenAI's legacy completions."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from services.inference.api.completions.schemas import StreamOptions
from services.inference.api.schemas import Usage
from services.inference.engine import TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import Plan
from shared.bpe import Tokenizer
from shared.lm.sampling_params import LOWEST_LOGPROB


class CompletionShape:
    """The answers of /v1/completions.

    Args:
        plan: The request's.
        tokenizer: The model's.
        id_: The answer's name.
        model: The model's.
        num_logprobs: How many alternatives were asked for, or None.
        options: What a stream has besides text.
        usage: Returns the tokens so far.
    """

    def __init__(
        self,
        plan: Plan,
        tokenizer: Tokenizer,
        *,
        id_: str,
        model: str,
        num_logprobs: int | None,
        options: StreamOptions,
        usage: Callable[[], Usage],
    ) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs
        self._include_usage = bool(options.include_usage)
        self._usage = usage if options.continuous_usage_stats else None
        self._constant = {"id": id_, "object": "text_completion", "created": int(time.time()), "model": model}

    def whole(self, choices: list[Delta], usage: Usage) -> dict[str, Any]:
        """See `Shape.whole`."""
        return {
            **self._constant,
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.model_dump(),
        }

    def part(self, index: int, delta: Delta, usage: Usage | None) -> dict[str, Any]:  # noqa: ARG002 - OpenAI's is apart
        """See `Shape.part`."""
        content = {**self._constant, "choices": [self._choice(index, delta)]}
        if self._usage is not None:
            content["usage"] = self._usage().model_dump()
        elif self._include_usage:
            content["usage"] = None
        return content

    def end(self, usage: Usage) -> dict[str, Any] | None:
        """The frame that `include_usage` asks for."""
        return {**self._constant, "choices": [], "usage": usage.model_dump()} if self._include_usage else None

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "text": delta.text,
            "logprobs": None if self._num_logprobs is None else self._logprobs(index, delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, index: int, delta: Delta) -> dict[str, Any]:
        prompt = self._plan.prompt_of(index)
        begin = len(prompt.text) if self._plan.echo else 0
        tokens: list[int] = list(delta.tokens)
        values: list[TokenLogprobs | None] = list(delta.logprobs)
        offsets = [begin + offset for offset in delta.offsets]
        if delta.prompt_logprobs is not None:
            tokens[:0] = prompt.ids
            values[:0] = [None, *delta.prompt_logprobs]
            offsets[:0] = prompt.offsets
        return {
            "tokens": [self._spell(token) for token in tokens],
            "token_logprobs": [None if value is None else max(value.chosen, LOWEST_LOGPROB) for value in values],
            "top_logprobs": self._top(tokens, values) if self._num_logprobs else None,
            "text_offset": offsets,
        }

    def _top(self, tokens: Sequence[int], values: Sequence[TokenLogprobs | None]) -> list[dict[str, float] | None]:
        return [
            None
            if value is None
            else {
                self._spell(other): max(logprob, LOWEST_LOGPROB)
                for other, logprob in (*value.top, (token, value.chosen))
            }
            for token, value in zip(tokens, values, strict=True)
        ]

    def _spell(self, token: int) -> str:
        """The token as text; one that is no text by itself as OpenAI spells it, so that two never look the same."""
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
