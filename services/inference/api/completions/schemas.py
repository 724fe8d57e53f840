"""What OpenAI's completions and models routes read and write.

After the specification at https://github.com/openai/openai-openapi; fields that vLLM added keep vLLM's names.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from services.inference.api.fields import MAX_PROMPTS, ContinuationRequest, TokenIds, count_prompt_ids
from services.inference.api.neutral_fields import NullIsAbsent
from services.inference.api.schemas import Usage
from shared.http import Text


def _kind_of_prompt(value: Any) -> str:
    if not isinstance(value, list):
        return "(text)"
    if not value or isinstance(value[0], int | float):
        return "(ids)"
    return "(lists of ids)" if isinstance(value[0], list) else "(texts)"


class StreamOptions(NullIsAbsent):
    """What a stream has besides text."""

    include_usage: bool | None = Field(None, description="One more frame before the end, with `usage` and no choices")
    continuous_usage_stats: bool | None = Field(None, description="vLLM's: `usage` so far in each frame")
    include_obfuscation: bool | None = Field(None, description="OpenAI's; accepted and ignored")


class CompletionRequest(ContinuationRequest):
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

    model: Text | None = Field(None, description="As /v1/models names it; default: the one that is served")
    prompt: Annotated[
        Annotated[Text, Tag("(text)")]
        | Annotated[list[Text], Field(max_length=MAX_PROMPTS), Tag("(texts)")]
        | Annotated[TokenIds, Tag("(ids)")]
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("(lists of ids)")],
        Discriminator(_kind_of_prompt),
        BeforeValidator(count_prompt_ids),
    ] = Field(description="A text, a list of texts, token ids, or a list of lists of them")
    max_tokens: int | None = Field(
        None, ge=0, description="The most tokens to generate; default: 16, or fewer where the context ends"
    )
    suffix: str | None = Field(None, description="Refused: the model only writes onwards")
    stream_options: StreamOptions | None = None
    user: Text | None = Field(None, description="Accepted and ignored")

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
        """As many as for the answer, where the prompt is echoed."""
        return self.logprobs if self.echo else None


class CompletionLogprobs(BaseModel):
    r"""Four lists with an entry for each token. A token that is no text by itself is spelt `bytes:\xf0\x9f`."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="Among the tokenizer's ids, see TopLogprob; null for the first token of a prompt"
    )
    top_logprobs: list[dict[str, float] | None] | None = Field(description="The likeliest tokens, and the one taken")
    text_offset: list[int] = Field(description="Where each token begins in the text, in characters")


class CompletionChoice(BaseModel):
    """One answer, or in a stream what was added to it. Numbered prompt by prompt: `prompt * n + choice`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream null, until the last part")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the answer")


class CompletionResponse(BaseModel):
    """The answer. In a stream each frame has this shape, without `usage` unless it was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Seconds since 1970")
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int = Field(description="When this server started, in seconds since 1970")
    owned_by: str
    max_model_len: int = Field(description="The most tokens of prompt and answer together")


class ModelList(BaseModel):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[ModelCard]
