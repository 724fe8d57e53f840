"""What the routes share: the way of a request into the engine, and of what is generated into its response."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import orjson
from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.types import Scope

from services.inference.api.sse import DONE, EventStream, encode_event
from services.inference.engine import EngineError
from services.inference.generation.chat import Conversation
from services.inference.generation.detokenizer import Delta
from services.inference.generation.loading import ServedModel
from services.inference.generation.prepare import check_num_sequences, prepare_request
from services.inference.generation.request import GenerationRequest, StreamOptions
from services.inference.generation.stream import Generation, to_api_error
from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from shared.bpe import TokenizerError
from shared.http import (
    ApiError,
    Lifecycle,
    ThreadPool,
    cancel_on_disconnect,
    current_request,
    error_responses,
    in_thread,
)

# Characters or tokens of prompts that are encoded on the event loop: under a millisecond, less than a thread costs
# under load.
_INLINE_SIZE = 1 << 12
# Tokens with log-probabilities that are encoded on the event loop; each may have 20 alternatives, a millisecond for
# all.
_INLINE_LOGPROBS = 64
_GENERATING_PATHS = frozenset({"/generate", "/v1/completions", "/v1/chat/completions"})

JsonObject = dict[str, Any]
GetUsage = Callable[[], JsonObject]
"""Returns the field `usage`: most events of a stream do without it."""


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Prompt tokens that were in the prefix cache")


class Usage(BaseModel):
    """Tokens read and generated."""

    prompt_tokens: int
    completion_tokens: int = Field(description="All generated tokens, including those of stop strings")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class InferenceService:
    """Submits requests to the engine of the loaded model."""

    def __init__(
        self, settings: InferenceSettings, lifecycle: Lifecycle[ServedModel], metrics: InferenceMetrics
    ) -> None:
        self.settings = settings
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._threads = ThreadPool(settings.cpu_threads)

    @property
    def model(self) -> ServedModel:
        """The model.

        Raises:
            ApiError: 503 while it is not ready.
        """
        return self._lifecycle.resource

    def refusal(self, scope: Scope, _headers: Mapping[bytes, bytes]) -> ApiError | None:
        """The error that any request to this route gets now, known before its body arrives; None if there is none."""
        if scope["method"] != "POST" or scope["path"] not in _GENERATING_PATHS:
            return None
        try:
            self._check_room(1)
        except ApiError as error:
            return error
        return None

    async def start(self, request: GenerationRequest, default_max_tokens: int) -> Generation:
        """Prepare a request and submit it to the engine. The caller must `close` the generation.

        Raises:
            ApiError: 400 for an invalid request, 429 or 503 where the engine cannot take it now.
        """
        num_sequences = check_num_sequences(request, self.settings)
        size = sum(map(len, request.prompts)) + len(request.given_tokens)
        if size <= _INLINE_SIZE and self.model.tokenizer.is_linear:
            prepared = prepare_request(request, self.model, default_max_tokens)
        else:
            self._check_room(num_sequences)  # `submit` checks again: other requests come in meanwhile
            prepared = await self._threads.run(prepare_request, request, self.model, default_max_tokens)
        return Generation(prepared, self.model, self._metrics, log_prompts=self.settings.log_prompts)

    async def encode_conversation(self, conversation: Conversation) -> tuple[list[int], frozenset[int]]:
        """The ids of a conversation, and the tokens that end an answer to it.

        Raises:
            ApiError: 400, the model has no chat template, or its template refuses the conversation.
        """
        chat = self.model.chat
        if chat is None:
            message = (
                "messages: the model has no chat template; send a prompt to /v1/completions, or add "
                "chat_template.jinja to the model's folder"
            )
            raise ApiError(400, message, param="messages", code="no_chat_template")
        ids = await self._threads.run(chat.encode, conversation)
        return ids, frozenset(() if chat.end_of_turn is None else (chat.end_of_turn,))

    async def encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text, without a limit of their number.

        Raises:
            ApiError: 400, the text cannot be encoded.
        """
        encode = partial(self.model.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        try:
            return await self._threads.run(encode)
        except TokenizerError as error:
            raise ApiError(400, f"prompt: {error}", param="prompt") from error

    def _check_room(self, num_sequences: int) -> None:
        try:
            self.model.engine.check_room(num_sequences)
        except EngineError as error:
            raise to_api_error(error) from error


def check_stream_options(options: StreamOptions | None, request: GenerationRequest) -> None:
    """Refuse options of a stream for a response that is none."""
    if options is not None and not request.stream:
        raise ApiError(400, "stream_options: allowed only with stream: true", param="stream_options")


class ResponseBuilder(Protocol):
    """Builds the JSON of a route's responses, as plain dicts: a pydantic model for each chunk is too slow."""

    def response(self, choices: Sequence[Delta], usage: JsonObject) -> JsonObject:
        """The body of a response that is not streamed."""

    def chunk(self, delta: Delta, usage: GetUsage, *, is_last: bool) -> JsonObject:
        """An event of a stream: what was added to a choice. `is_last`: no choice has another one."""

    def usage_chunk(self, usage: JsonObject) -> JsonObject | None:
        """One more event after all choices, if the client asked for it."""


def response_id(prefix: str) -> str:
    """The id of a response: the request's own, so that response, log line and header are found together."""
    context = current_request.get()
    return f"{prefix}-{context.id if context is not None else ''}"


async def respond(request: Request, generation: Generation, builder: ResponseBuilder) -> bytes | Response:
    """Respond with what is generated; generation stops when the client disconnects.

    Raises:
        ApiError: The engine failed; in a stream only before its first event.
    """
    if generation.prepared.request.stream:
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
    encode = partial(_dump, builder, choices, usage)
    return await in_thread(encode) if _are_long(choices) else encode()


def _dump(builder: ResponseBuilder, choices: Sequence[Delta], usage: JsonObject) -> bytes:
    return orjson.dumps(builder.response(choices, usage))


async def _events(generation: Generation, builder: ResponseBuilder) -> AsyncIterator[bytes]:
    usage = partial(_usage, generation)
    async for deltas in generation.deltas():
        encode = partial(_chunks, builder, deltas, usage, generation.is_finished)
        yield await in_thread(encode) if _are_long(deltas) else encode()
    last = builder.usage_chunk(usage())
    yield (encode_event(last) if last is not None else b"") + DONE


def _chunks(builder: ResponseBuilder, deltas: Sequence[Delta], usage: GetUsage, is_finished: bool) -> bytes:
    last = deltas[-1] if is_finished else None
    return b"".join([encode_event(builder.chunk(delta, usage, is_last=delta is last)) for delta in deltas])


def _are_long(deltas: Sequence[Delta]) -> bool:
    """Whether to encode in a thread: log-probabilities of long prompts take seconds."""
    num_logprobs = 0
    for delta in deltas:
        num_logprobs += len(delta.logprobs) + len(delta.prompt_logprobs or ())
    return num_logprobs > _INLINE_LOGPROBS
