"""The response to a request: one JSON object, or Server-Sent Events, in the format of its route."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import orjson
from fastapi import Request, Response
from pydantic import BaseModel, Field

from services.inference.api.sse import DONE, EventStream, encode_event
from services.inference.generation.detokenizer import Delta
from services.inference.generation.stream import Generation
from shared.http import cancel_on_disconnect, error_responses, in_thread

# Tokens with log-probabilities that are encoded on the event loop; each may have 20 alternatives, a millisecond for
# all.
_INLINE_LOGPROBS = 64

JsonObject = dict[str, Any]


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Prompt tokens that were in the prefix cache")


class Usage(BaseModel):
    """Tokens read and generated."""

    prompt_tokens: int
    completion_tokens: int = Field(description="All generated tokens, including those of stop strings")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ResponseBuilder(Protocol):
    """Builds the JSON of a route's responses, as plain dicts: a pydantic model for each chunk is too slow."""

    def response(self, choices: Sequence[Delta], usage: JsonObject) -> JsonObject:
        """The body of a response that is not streamed."""

    def chunk(self, delta: Delta, usage: JsonObject, *, is_last: bool) -> JsonObject:
        """An event of a stream: what was added to a choice. `is_last`: no choice has another one."""

    def usage_chunk(self, usage: JsonObject) -> JsonObject | None:
        """One more event after all choices, if the client asked for it."""


async def respond(
    request: Request, generation: Generation, builder: ResponseBuilder, *, stream: bool
) -> bytes | Response:
    """Respond with what is generated; generation stops when the client disconnects.

    Raises:
        ApiError: The engine failed; in a stream only before its first event.
    """
    if stream:
        return EventStream(_events(generation, builder), on_end=generation.close)
    try:
        return await cancel_on_disconnect(request, _body(generation, builder))
    finally:
        generation.close()


def response_docs(example: str, *further_errors: int) -> dict[int | str, JsonObject]:
    """The OpenAPI `responses` of a route that generates; `example` is a stream."""
    # Before OpenAPI 3.2, the schema of a stream is that of each event.
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string", "description": "JSON of the response's schema, or [DONE]"}},
    }
    return {
        **error_responses(400, 413, 415, 422, 429, 500, 503, 504, *further_errors),
        200: {
            "description": "The response; with `stream`, Server-Sent Events of the same schema with what is new",
            "content": {"text/event-stream": {"schema": event, "example": example}},
        },
    }


def _usage(generation: Generation) -> JsonObject:
    """The `Usage` so far."""
    prompt_tokens = generation.prepared.num_prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generation.num_completion_tokens,
        "total_tokens": prompt_tokens + generation.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }


async def _body(generation: Generation, builder: ResponseBuilder) -> bytes:
    choices = [Delta(index) for index in range(generation.prepared.num_choices)]
    async for deltas in generation.deltas():
        for delta in deltas:
            choices[delta.index].extend(delta)
    usage = _usage(generation)
    return await _encode(lambda: orjson.dumps(builder.response(choices, usage)), choices)


async def _events(generation: Generation, builder: ResponseBuilder) -> AsyncIterator[bytes]:
    async for deltas in generation.deltas():
        yield await _encode(partial(_chunks, builder, deltas, _usage(generation), generation.is_finished), deltas)
    last = builder.usage_chunk(_usage(generation))
    yield (encode_event(last) if last is not None else b"") + DONE


def _chunks(builder: ResponseBuilder, deltas: Sequence[Delta], usage: JsonObject, is_finished: bool) -> bytes:
    return b"".join(
        encode_event(builder.chunk(delta, usage, is_last=is_finished and delta is deltas[-1])) for delta in deltas
    )


async def _encode(encode: Callable[[], bytes], deltas: Sequence[Delta]) -> bytes:
    """Call `encode`, in a thread if that is slow: log-probabilities of long prompts take seconds."""
    if sum(len(delta.logprobs) + len(delta.prompt_logprobs or ()) for delta in deltas) <= _INLINE_LOGPROBS:
        return encode()
    return await in_thread(encode)
