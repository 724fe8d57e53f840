"""`POST /v1/completions`: OpenAI's legacy completions.

After the specification at https://github.com/openai/openai-openapi; fields that vLLM added keep vLLM's names.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

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
from services.inference.engine import TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import PreparedRequest
from services.inference.generation.request import (
    MAX_PROMPTS,
    PromptRequest,
    StreamOptions,
    TokenIds,
    limit_prompt_ids,
)
from shared.bpe import Tokenizer
from shared.http import ApiError, BodyRoute
from shared.lm.sampling_params import LOWEST_LOGPROB

_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_STREAM_EXAMPLE = (
    'data: {"id":"cmpl-...","object":"text_completion","created":1,"model":"demo",'
    '"choices":[{"index":0,"text":" upon","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    "data: [DONE]\n\n"
)


def _prompt_type(value: Any) -> str:
    if not isinstance(value, list):
        return "(text)"
    if not value or isinstance(value[0], int | float):
        return "(ids)"
    return "(lists of ids)" if isinstance(value[0], list) else "(texts)"


class CompletionRequest(PromptRequest):
    """OpenAI's request, with vLLM's `top_k`, `min_p`, `repetition_penalty`, `min_tokens` and the like."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.8, "seed": 1},
                {"prompt": ["One", "Two"], "max_tokens": 8, "n": 2, "logprobs": 3, "echo": True},
                {"prompt": [1, 2, 3], "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}},
            ]
        }
    )

    model: str | None = Field(None, description="The name in /v1/models; default: the model that is served")
    prompt: Annotated[
        Annotated[str, Tag("(text)")]
        | Annotated[list[str], Field(max_length=MAX_PROMPTS), Tag("(texts)")]
        | Annotated[TokenIds, Tag("(ids)")]
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("(lists of ids)")],
        Discriminator(_prompt_type),
        BeforeValidator(limit_prompt_ids),
    ] = Field(description="A text, a list of texts, token ids, or a list of lists of token ids")
    max_tokens: int | None = Field(
        None, ge=0, description="The most tokens to generate; default: 16, or fewer where the context ends"
    )
    suffix: str | None = Field(None, description="Refused: the model cannot fill in the middle")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted and ignored")

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The field `logprobs`, where the prompt is echoed."""
        return self.logprobs if self.echo else None


class CompletionLogprobs(BaseModel):
    r"""Four lists with an entry for each token. A token that is not valid UTF-8 is spelled `bytes:\xf0\x9f`."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="Among the tokenizer's ids, see TopLogprob; null for the first token of a prompt"
    )
    top_logprobs: list[dict[str, float] | None] | None = Field(description="The most likely tokens and the sampled one")
    text_offset: list[int] = Field(description="Where each token begins in the text, in characters")


class CompletionChoice(BaseModel):
    """One choice, or in a stream what was added to it. Numbered prompt by prompt: `prompt * n + choice`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream, null until the last chunk")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the choice")


class CompletionResponse(BaseModel):
    """The response. In a stream each event has this schema, without `usage` unless it was requested."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Seconds since 1970")
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


def completion_route(service: InferenceService) -> BodyRoute:
    """The route."""
    name = service.settings.served_name

    async def create_completion(body: CompletionRequest, request: Request) -> bytes | Response:
        """Continue one prompt or several, as OpenAI's clients request it."""
        check_model(body.model, name)
        if body.suffix is not None:
            raise ApiError(400, "suffix: not supported, the model cannot fill in the middle", param="suffix")
        check_stream_options(body.stream_options, body)
        generation = await service.start(body, _DEFAULT_MAX_TOKENS)
        builder = CompletionResponseBuilder(
            generation.prepared,
            service.model.tokenizer,
            id_=response_id("cmpl"),
            model=name,
            options=body.stream_options or StreamOptions(),
        )
        return await respond(request, generation, builder)

    return BodyRoute(
        "/v1/completions",
        create_completion,
        name="completions",
        response_model=CompletionResponse,
        responses=response_docs(_STREAM_EXAMPLE, 404),
        tags=["OpenAI"],
    )


class CompletionResponseBuilder:
    """The `ResponseBuilder` of `CompletionResponse`.

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
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._num_logprobs = prepared.request.num_logprobs
        self._options = options
        self._constant = {"id": id_, "object": "text_completion", "created": int(time.time()), "model": model}

    def response(self, choices: Sequence[Delta], usage: JsonObject) -> JsonObject:
        """See `ResponseBuilder.response`."""
        return {**self._constant, "choices": [self._choice(choice) for choice in choices], "usage": usage}

    def chunk(self, delta: Delta, usage: GetUsage, *, is_last: bool) -> JsonObject:  # noqa: ARG002 - see `usage_chunk`
        """See `ResponseBuilder.chunk`."""
        return {**self._constant, "choices": [self._choice(delta)], **self._options.usage_field(usage)}

    def usage_chunk(self, usage: JsonObject) -> JsonObject | None:
        """The event that `include_usage` requests."""
        return {**self._constant, "choices": [], "usage": usage} if self._options.include_usage else None

    def _choice(self, delta: Delta) -> JsonObject:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None if self._num_logprobs is None else self._logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, delta: Delta) -> JsonObject:
        prompt = self._prepared.prompt_of(delta.index)
        start = len(prompt.text) if self._prepared.request.echoes else 0
        tokens: list[int] = list(delta.tokens)
        values: list[TokenLogprobs | None] = list(delta.logprobs)
        offsets = [start + offset for offset in delta.offsets]
        if delta.prompt_logprobs is not None:
            tokens[:0] = prompt.ids
            values[:0] = [None, *delta.prompt_logprobs]
            offsets[:0] = prompt.offsets
        return {
            "tokens": [self._spell(token) for token in tokens],
            "token_logprobs": [None if value is None else max(value.chosen, LOWEST_LOGPROB) for value in values],
            "top_logprobs": [self._top(*pair) for pair in zip(tokens, values, strict=True)]
            if self._num_logprobs
            else None,
            "text_offset": offsets,
        }

    def _top(self, token: int, value: TokenLogprobs | None) -> dict[str, float] | None:
        if value is None:
            return None
        return {
            self._spell(other): max(logprob, LOWEST_LOGPROB) for other, logprob in (*value.top, (token, value.chosen))
        }

    def _spell(self, token: int) -> str:
        """The token as text, or escaped as OpenAI does where it is not valid UTF-8: no two tokens look the same."""
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
