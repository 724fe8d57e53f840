"""`POST /v1/chat/completions`: OpenAI's chat completions.

After the specification at https://github.com/openai/openai-openapi; fields that vLLM added keep vLLM's names.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from services.inference.api.conversation import ConversationFields, Messages
from services.inference.api.models import check_model
from services.inference.api.service import (
    GetUsage,
    InferenceService,
    JsonObject,
    Usage,
    check_stream_options,
    respond,
    response_docs,
    response_id,
)
from services.inference.engine import MAX_LOGPROBS, TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import PreparedRequest
from services.inference.generation.request import GenerationRequest, StreamOptions
from shared.bpe import Tokenizer
from shared.http import ApiError, BodyRoute
from shared.lm.sampling_params import LOWEST_LOGPROB

_STREAM_EXAMPLE = (
    'data: {"id":"chatcmpl-...","object":"chat.completion.chunk","created":1,"model":"demo","choices":[{"index":0,'
    '"delta":{"role":"assistant","content":" upon"},"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    "data: [DONE]\n\n"
)


class ChatCompletionRequest(ConversationFields, GenerationRequest):
    """OpenAI's request, with vLLM's `top_k`, `min_p`, `chat_template_kwargs`, `continue_final_message` and the like."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": "Who lost the hat?"}], "max_completion_tokens": 32},
                {
                    "messages": [
                        {"role": "system", "content": "Answer in one sentence."},
                        {"role": "user", "content": [{"type": "text", "text": "Who lost the hat?"}]},
                    ],
                    "stream": True,
                    "logprobs": True,
                    "top_logprobs": 2,
                },
            ]
        }
    )
    _prompt_ids: list[int] = PrivateAttr(default_factory=list)
    _ending_tokens: frozenset[int] = PrivateAttr(default=frozenset())

    model: str | None = Field(None, description="The name in /v1/models; default: the model that is served")
    messages: Messages
    max_completion_tokens: int | None = Field(
        None, ge=0, description="The most tokens to generate; default: as many as the context has room for"
    )
    max_tokens: int | None = Field(None, ge=0, description="The older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="Report each token's log-probability")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="And this many of the most likely tokens; only with `logprobs`"
    )
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="Only empty")
    tool_choice: Literal["none", "auto"] | None = Field(None, description="Ignored: there are no tools")
    parallel_tool_calls: bool | None = Field(None, description="Ignored: there are no tools")
    user: str | None = Field(None, description="Accepted and ignored")

    def set_prompt(self, ids: list[int], ending_tokens: frozenset[int]) -> None:
        """Set what the conversation was rendered to."""
        self._prompt_ids, self._ending_tokens = ids, ending_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """The rendered conversation."""
        return [self._prompt_ids]

    @property
    def prompt_field(self) -> str:
        """The field of the conversation."""
        return "messages"

    @property
    def ending_tokens(self) -> frozenset[int]:
        """The template's end of a turn."""
        return self._ending_tokens

    @property
    def token_limit(self) -> int | None:
        """The field `max_completion_tokens`, or `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """The field `top_logprobs`, where log-probabilities are requested."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def num_prompt_logprobs(self) -> None:
        """None: prompts are not scored here."""


class ChatTopLogprob(BaseModel):
    """A token and its natural log-probability, see TopLogprob."""

    token: str = Field(description="The token as text; parts of characters show as U+FFFD")
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    """A token with its most likely alternatives."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the tokens of a choice, or in a stream of those that were added."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    """The answer, or in a stream (there called `delta`) what was added to it; `role` comes with the first."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One choice."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream, null until the last chunk")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the choice")


class ChatCompletionResponse(BaseModel):
    """The response. In a stream each event is a `chat.completion.chunk`, whose choices have `delta` for `message`."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970")
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


def chat_completion_route(service: InferenceService) -> BodyRoute:
    """The route."""
    name = service.settings.served_name

    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> bytes | Response:
        """Answer a conversation, as OpenAI's clients request it."""
        check_model(body.model, name)
        _check_together(body)
        body.set_prompt(*await service.encode_conversation(body.conversation(body.messages)))
        generation = await service.start(body, service.model.context_length)
        builder = ChatResponseBuilder(
            generation.prepared,
            service.model.tokenizer,
            id_=response_id("chatcmpl"),
            model=name,
            options=body.stream_options or StreamOptions(),
        )
        return await respond(request, generation, builder)

    return BodyRoute(
        "/v1/chat/completions",
        create_chat_completion,
        name="chat_completions",
        response_model=ChatCompletionResponse,
        responses=response_docs(_STREAM_EXAMPLE, 404),
        tags=["OpenAI"],
    )


def _check_together(body: ChatCompletionRequest) -> None:
    """Refuse fields that contradict each other."""
    check_stream_options(body.stream_options, body)
    if body.max_tokens not in (None, body.token_limit):
        message = "max_tokens: must equal max_completion_tokens, of which it is the older name"
        raise ApiError(400, message, param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: allowed only with logprobs: true", param="top_logprobs")


class ChatResponseBuilder:
    """The `ResponseBuilder` of `ChatCompletionResponse`.

    Args:
        prepared: The request.
        tokenizer: The model's.
        id_: The response's id.
        model: The model's name.
        options: The stream's options.
    """

    def __init__(
        self, prepared: PreparedRequest, tokenizer: Tokenizer, *, id_: str, model: str, options: StreamOptions
    ) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = prepared.request.num_logprobs is not None
        self._options = options
        self._constant = {"id": id_, "created": int(time.time()), "model": model}
        self._begun: set[int] = set()

    def response(self, choices: Sequence[Delta], usage: JsonObject) -> JsonObject:
        """See `ResponseBuilder.response`."""
        found = [self._choice(choice, "message", _message(choice.text)) for choice in choices]
        return {**self._constant, "object": "chat.completion", "choices": found, "usage": usage}

    def chunk(self, delta: Delta, usage: GetUsage, *, is_last: bool) -> JsonObject:  # noqa: ARG002 - see `usage_chunk`
        """See `ResponseBuilder.chunk`."""
        added = {"content": delta.text} if delta.index in self._begun else _message(delta.text)
        self._begun.add(delta.index)
        return {**self._chunk([self._choice(delta, "delta", added)]), **self._options.usage_field(usage)}

    def usage_chunk(self, usage: JsonObject) -> JsonObject | None:
        """The event that `include_usage` requests."""
        return {**self._chunk([]), "usage": usage} if self._options.include_usage else None

    def _chunk(self, choices: list[JsonObject]) -> JsonObject:
        return {**self._constant, "object": "chat.completion.chunk", "choices": choices}

    def _choice(self, delta: Delta, field: str, message: JsonObject) -> JsonObject:
        return {
            "index": delta.index,
            field: message,
            "logprobs": {"content": [*self._logprobs(delta)], "refusal": None} if self._has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, delta: Delta) -> Iterator[JsonObject]:
        for token, values in zip(delta.tokens, delta.logprobs, strict=True):
            yield {**self._logprob(token, values.chosen), "top_logprobs": self._top(values)}

    def _top(self, values: TokenLogprobs) -> list[JsonObject]:
        return [self._logprob(token, logprob) for token, logprob in values.top]

    def _logprob(self, token: int, logprob: float) -> JsonObject:
        data = self._tokenizer.token_bytes(token)
        return {
            "token": data.decode("utf-8", errors="replace"),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(data),
        }


def _message(text: str) -> JsonObject:
    return {"role": "assistant", "content": text, "refusal": None}
