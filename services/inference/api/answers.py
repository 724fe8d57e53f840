"""The answer to a request: whole, or as Server-Sent Events, in the shape of its route."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import orjson
from fastapi import Request, Response

from services.inference.api.schemas import Usage
from services.inference.api.sse import DONE, EventStream, frame
from services.inference.engine import TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import Plan
from services.inference.generation.stream import Generation, Step
from shared.bpe import Tokenizer
from shared.http import cancel_on_disconnect, in_thread
from shared.lm.sampling_params import LOWEST_LOGPROB

# Tokens with log-probabilities that are written at once; each may have 20 alternatives, a millisecond for all.
_INLINE_LOGPROBS = 64


class Shape(Protocol):
    """How a route words its answers. Contents are plain data for the JSON encoder: a model a frame costs too much."""

    def whole(self, choices: list[Delta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def part(self, index: int, delta: Delta, usage: Usage | None) -> dict[str, Any]:
        """A frame with what was added to a choice; `usage` comes with the last one."""

    def end(self, usage: Usage) -> dict[str, Any] | None:
        """A frame after all choices, where the client asked for one."""


async def answer(
    request: Request, generation: Generation, shape: Shape, *, stream: bool, send_timeout: float
) -> Response:
    """Answer with what is generated, and stop generating when the client leaves.

    Raises:
        ApiError: The engine could not finish; in a stream only before its first frame.
    """
    if stream:
        return EventStream(_frames(generation, shape), on_end=generation.close, send_timeout=send_timeout)
    try:
        content = await cancel_on_disconnect(request, _whole(generation, shape))
    finally:
        generation.close()
    return Response(content, media_type="application/json")


async def _whole(generation: Generation, shape: Shape) -> bytes:
    choices = [Delta() for _ in range(generation.plan.num_choices)]
    async for step in generation.steps():
        for index, delta in step:
            choices[index].extend(delta)
    usage = generation.usage()
    return await _written(lambda: orjson.dumps(shape.whole(choices, usage)), choices)


async def _frames(generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    usage = None
    async for step in generation.steps():
        usage = generation.usage() if generation.finished else None
        yield await _written(partial(_parts, shape, step, usage), [delta for _, delta in step])
    end = shape.end(usage or generation.usage())
    yield (frame(end) if end is not None else b"") + DONE


def _parts(shape: Shape, step: Step, usage: Usage | None) -> bytes:
    last = len(step) - 1
    return b"".join(
        frame(shape.part(index, delta, usage if place == last else None)) for place, (index, delta) in enumerate(step)
    )


async def _written(write: Callable[[], bytes], deltas: Sequence[Delta]) -> bytes:
    """Call `write`, in a thread where that takes long: log-probabilities of long prompts take seconds."""
    if sum(len(delta.logprobs) + len(delta.prompt_logprobs or ()) for delta in deltas) <= _INLINE_LOGPROBS:
        return write()
    return await in_thread(write)


class GenerateShape:
    """The answers of /generate."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer, *, id_: str, model: str, logprobs: bool) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._id = id_
        self._model = model
        self._fingerprint = tokenizer.fingerprint
        self._logprobs = logprobs
        self._spellings: dict[int, tuple[str, list[int]]] = {}  # the likeliest tokens are nearly always the same

    def whole(self, choices: list[Delta], usage: Usage) -> dict[str, Any]:
        """See `Shape.whole`."""
        return self._content([self._choice(index, choice) for index, choice in enumerate(choices)], usage)

    def part(self, index: int, delta: Delta, usage: Usage | None) -> dict[str, Any]:
        """See `Shape.part`."""
        return self._content([self._choice(index, delta)], usage)

    def end(self, usage: Usage) -> dict[str, Any] | None:  # noqa: ARG002 - the last part has it
        """Nothing more."""
        return None

    def _content(self, choices: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "model": self._model,
            "choices": choices,
            "usage": usage and usage.model_dump(),
            "seed": self._plan.seed,
            "fingerprint": self._fingerprint,
        }

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": delta.text,
            "tokens": delta.tokens,
            "logprobs": self._entries(delta.tokens, delta.logprobs) if self._logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if delta.prompt_logprobs is not None:
            following = self._plan.prompt_of(index).ids[1:]
            choice["prompt_logprobs"] = [None, *self._entries(following, delta.prompt_logprobs)]
        return choice

    def _entries(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        return [
            {
                **self._entry(token, values.chosen),
                "top_logprobs": [self._entry(other, value) for other, value in values.top],
            }
            for token, values in zip(tokens, logprobs, strict=True)
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        spelling = self._spellings.get(token)
        if spelling is None:
            data = self._tokenizer.token_bytes(token)
            spelling = self._spellings[token] = data.decode("utf-8", errors="replace"), list(data)
        text, numbers = spelling
        return {"id": token, "token": text, "bytes": numbers, "logprob": max(logprob, LOWEST_LOGPROB)}
