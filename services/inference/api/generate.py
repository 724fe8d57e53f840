"""`POST /generate`: continues one prompt; the response has token ids, bytes and the seed."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from services.inference.api.service import (
    GetUsage,
    InferenceService,
    JsonObject,
    Usage,
    respond,
    response_docs,
    response_id,
)
from services.inference.engine import MAX_LOGPROBS, TokenLogprobs
from services.inference.generation.detokenizer import Delta
from services.inference.generation.prepare import PreparedRequest, choice_seeds
from services.inference.generation.request import PromptRequest, TokenIds, limit_prompt_ids, one_or_list
from shared.bpe import Tokenizer
from shared.http import BodyRoute
from shared.lm.sampling_params import LOWEST_LOGPROB

_STREAM_EXAMPLE = (
    'data: {"id":"gen-...","model":"demo","choices":[{"index":0,"text":" upon","tokens":[271],"logprobs":null,'
    '"finish_reason":null,"stop_reason":null}],"usage":null,"seed":1,"choice_seeds":[1],"fingerprint":"..."}\n\n'
    "data: [DONE]\n\n"
)


class GenerateRequest(PromptRequest):
    """A prompt and how to continue it. A field that is absent or null has its default."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0.8, "stream": True},
                {"prompt": [1, 2, 3], "max_tokens": 16, "temperature": 0, "stop": ["\n", "The end"]},
            ]
        }
    )

    prompt: Annotated[
        Annotated[str, Tag("(one)")] | Annotated[TokenIds, Tag("(list)")],
        Discriminator(one_or_list),
        BeforeValidator(limit_prompt_ids),
    ] = Field(description="Text, or token ids that are used as they are")
    max_tokens: int | None = Field(
        None,
        ge=0,
        description="The most tokens to generate; default: the one in /info, or fewer where the context ends",
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Report the log-probabilities of prompt and continue_tokens, and of this many most likely tokens",
    )
    stream_bytes: bool | None = Field(
        None,
        description="Stream each token as it comes, also while its bytes are not yet a whole character; default: "
        "together with the text of that character",
    )

    @property
    def prompts(self) -> list[str | list[int]]:
        """The one prompt."""
        return [self.prompt]

    @property
    def splits_characters(self) -> bool:
        """The field `stream_bytes`."""
        return bool(self.stream and self.stream_bytes)

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The field `prompt_logprobs`."""
        return self.prompt_logprobs


class TopLogprob(BaseModel):
    """A token and its natural log-probability among the tokenizer's ids; -9999 is the lowest.

    It is the model's, before any sampling parameter. Rows of the model's vocabulary without a token (padding) are
    excluded; the probabilities of all others sum to 1.
    """

    id: int
    token: str = Field(description="The token as text; parts of characters show as U+FFFD")
    bytes: list[int] = Field(description="The token's bytes: those of all tokens joined are the text")
    logprob: float


class TokenLogprob(TopLogprob):
    """A token with its most likely alternatives."""

    top_logprobs: list[TopLogprob]


class ChoiceResponse(BaseModel):
    """One choice, or in a stream what was added to it."""

    index: int
    text: str
    tokens: list[int] = Field(
        description="The generated tokens: without those of a stop string, with the token that ended the choice"
    )
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob | None] | None = Field(
        None, description="Present if requested: of each token of the prompt and of continue_tokens; null for the first"
    )
    prompt_token_ids: list[int] | None = Field(
        None, description="Present with prompt_logprobs: the ids of those tokens, of the first one too"
    )
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream, null until the last chunk")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the choice")


class GenerateResponse(BaseModel):
    """The response. In a stream each event has this schema, and the last one has `usage`."""

    id: str
    model: str
    choices: list[ChoiceResponse]
    usage: Usage | None
    seed: int = Field(description="The same seed in the same request gives the same response")
    choice_seeds: list[int] = Field(description="By index: without `n`, this seed gives this choice")
    fingerprint: str = Field(description="Identifies the tokenizer that the token ids belong to")


def generate_route(service: InferenceService) -> BodyRoute:
    """The route."""

    async def generate(body: GenerateRequest, request: Request) -> bytes | Response:
        """Continue a prompt. Generation stops when the client disconnects."""
        generation = await service.start(body, service.settings.default_max_tokens)
        builder = GenerateResponseBuilder(
            generation.prepared, service.model.tokenizer, id_=response_id("gen"), model=service.settings.served_name
        )
        return await respond(request, generation, builder)

    return BodyRoute("/generate", generate, response_model=GenerateResponse, responses=response_docs(_STREAM_EXAMPLE))


class GenerateResponseBuilder:
    """The `ResponseBuilder` of `GenerateResponse`."""

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, *, id_: str, model: str) -> None:
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._id = id_
        self._model = model
        self._fingerprint = tokenizer.fingerprint
        self._choice_seeds = choice_seeds(prepared.seed, prepared.request.num_choices)
        self._has_logprobs = prepared.request.num_logprobs is not None
        self._tokens: dict[int, tuple[str, list[int]]] = {}  # text and bytes: the most likely tokens are often the same

    def response(self, choices: Sequence[Delta], usage: JsonObject) -> JsonObject:
        """See `ResponseBuilder.response`."""
        return self._content([self._choice(choice) for choice in choices], usage)

    def chunk(self, delta: Delta, usage: GetUsage, *, is_last: bool) -> JsonObject:
        """See `ResponseBuilder.chunk`."""
        return self._content([self._choice(delta)], usage() if is_last else None)

    def usage_chunk(self, usage: JsonObject) -> None:
        """None: the last chunk has the usage."""

    def _content(self, choices: list[JsonObject], usage: JsonObject | None) -> JsonObject:
        return {
            "id": self._id,
            "model": self._model,
            "choices": choices,
            "usage": usage,
            "seed": self._prepared.seed,
            "choice_seeds": self._choice_seeds,
            "fingerprint": self._fingerprint,
        }

    def _choice(self, delta: Delta) -> JsonObject:
        choice: JsonObject = {
            "index": delta.index,
            "text": delta.text,
            "tokens": delta.tokens,
            "logprobs": self._logprobs(delta.tokens, delta.logprobs) if self._has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if delta.prompt_logprobs is not None:
            ids = self._prepared.prompt_of(delta.index).ids
            choice["prompt_logprobs"] = [None, *self._logprobs(ids[1:], delta.prompt_logprobs)]
            choice["prompt_token_ids"] = list(ids)
        return choice

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[JsonObject]:
        return [
            {
                **self._logprob(token, values.chosen),
                "top_logprobs": [self._logprob(other, value) for other, value in values.top],
            }
            for token, values in zip(tokens, logprobs, strict=True)
        ]

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        described = self._tokens.get(token)
        if described is None:
            data = self._tokenizer.token_bytes(token)
            described = self._tokens[token] = data.decode("utf-8", errors="replace"), list(data)
        text, numbers = described
        return {"id": token, "token": text, "bytes": numbers, "logprob": max(logprob, LOWEST_LOGPROB)}
