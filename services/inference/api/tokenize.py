"""`POST /tokenize` and `POST /detokenize`: the model's tokenizer and chat template, in vLLM's form."""

from typing import Annotated

import orjson
from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from services.inference.api.conversation import ConversationFields, Messages
from services.inference.api.models import check_model
from services.inference.api.service import InferenceService, JsonObject
from services.inference.generation.loading import ServedModel
from services.inference.generation.request import NullIsAbsent, TokenIds, limit_prompt_ids
from shared.bpe import TokenizerError
from shared.http import ApiError, BodyRoute, error_responses, in_thread


class TokenizeRequest(ConversationFields):
    """A text, or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"prompt": "Once upon a time"}, {"messages": [{"role": "user", "content": "Hello"}]}]
        }
    )

    model: str | None = Field(None, description="The name in /v1/models; default: the model that is served")
    prompt: str | None = Field(None, description="A text")
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens to the text; default: true"
    )
    return_token_strs: bool | None = Field(None, description="Return each token as text, too")


class TokenizeResponse(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int = Field(description="The most tokens of prompt and generated text together")
    tokens: list[int]
    token_strs: list[str] | None = Field(description="Parts of characters show as U+FFFD; null unless requested")


class DetokenizeRequest(NullIsAbsent):
    """Token ids."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [1, 2, 3]}]})

    model: str | None = Field(None, description="The name in /v1/models; default: the model that is served")
    tokens: Annotated[TokenIds, BeforeValidator(limit_prompt_ids)]


class DetokenizeResponse(BaseModel):
    """Their text."""

    prompt: str = Field(description="Special tokens included; bytes that are not UTF-8 show as U+FFFD")


def tokenize_route(service: InferenceService) -> BodyRoute:
    """The route."""

    async def tokenize(body: TokenizeRequest, _request: Request) -> bytes:
        """The ids of a text, or of a conversation as the chat template renders it."""
        check_model(body.model, service.settings.served_name)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt: send either a prompt or messages", param="prompt")
        if body.messages is not None:
            ids, _ = await service.encode_conversation(body.conversation(body.messages))
        else:
            ids = await service.encode_text(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
        return await in_thread(lambda: orjson.dumps(_response(service.model, ids, with_texts=body.return_token_strs)))

    responses = error_responses(400, 404, 413, 415, 422, 503)
    return BodyRoute("/tokenize", tokenize, response_model=TokenizeResponse, responses=responses, tags=["vLLM"])


def detokenize_route(service: InferenceService) -> BodyRoute:
    """The route."""

    async def detokenize(body: DetokenizeRequest, _request: Request) -> bytes:
        """The text of token ids."""
        check_model(body.model, service.settings.served_name)
        tokenizer = service.model.tokenizer
        try:
            text = await in_thread(lambda: tokenizer.decode(body.tokens))
        except TokenizerError as error:
            raise ApiError(400, f"tokens: {error}", param="tokens") from error
        return await in_thread(lambda: orjson.dumps({"prompt": text}))

    responses = error_responses(400, 404, 413, 415, 422, 503)
    return BodyRoute("/detokenize", detokenize, response_model=DetokenizeResponse, responses=responses, tags=["vLLM"])


def _response(model: ServedModel, ids: list[int], *, with_texts: bool | None) -> JsonObject:
    texts = [model.tokenizer.token_bytes(token).decode(errors="replace") for token in ids] if with_texts else None
    return {"count": len(ids), "max_model_len": model.context_length, "tokens": ids, "token_strs": texts}
