"""What /generate and /info read and write."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from services.inference.api.fields import ContinuationRequest, TokenIds, count_prompt_ids, one_or_list
from shared.http import Text


class GenerateRequest(ContinuationRequest):
    """A prompt and how to continue it. Absent and null are the same: the default."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0.8, "stream": True},
                {"prompt": [1, 2, 3], "max_tokens": 16, "temperature": 0, "stop": ["\n", "The end"]},
            ]
        }
    )

    prompt: Annotated[
        Annotated[Text, Tag("(one)")] | Annotated[TokenIds, Tag("(list)")],
        Discriminator(one_or_list),
        BeforeValidator(count_prompt_ids),
    ] = Field(description="Text, or token ids that are used as they are")
    max_tokens: int | None = Field(
        None, ge=0, description="The most tokens to generate; default: what /info says, or fewer where the context ends"
    )
    prompt_logprobs: int | None = Field(
        None, ge=0, le=20, description="Report the prompt's log-probabilities, and this many of the likeliest tokens"
    )

    @property
    def prompts(self) -> list[str | list[int]]:
        """The one prompt."""
        return [self.prompt]

    @property
    def num_prompt_logprobs(self) -> int | None:
        """As asked for."""
        return self.prompt_logprobs


class TopLogprob(BaseModel):
    """A token and its natural log-probability among the tokenizer's ids; -9999 is the lowest.

    It is the model's, before any sampling parameter. Rows of the model's vocabulary that stand for no token (padding)
    are left out, and the probabilities of all others add up to 1.
    """

    id: int
    token: str = Field(description="The token as text; parts of characters show as U+FFFD")
    bytes: list[int] = Field(description="The token's bytes: those of all tokens joined are the text")
    logprob: float


class TokenLogprob(TopLogprob):
    """A token with its likeliest alternatives."""

    top_logprobs: list[TopLogprob]


class ChoiceResponse(BaseModel):
    """One answer, or in a stream what was added to it."""

    index: int
    text: str
    tokens: list[int] = Field(
        description="The generated tokens: without those of a stop string, with the token that ended the answer"
    )
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob | None] | None = Field(
        None, description="There where they were asked for: of each token of the prompt; the first has none"
    )
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream null, until the last part")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the answer")


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Those of the prompt that were in the prefix cache already")


class Usage(BaseModel):
    """What was read and written, in tokens."""

    prompt_tokens: int
    completion_tokens: int = Field(description="All that were generated, those of stop strings included")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class GenerateResponse(BaseModel):
    """The answer. In a stream each frame has this shape, and the last one has `usage`."""

    id: str
    model: str
    choices: list[ChoiceResponse]
    usage: Usage | None
    seed: int = Field(description="Send it again, with all else equal, to get the same answer")
    fingerprint: str = Field(description="Identifies the tokenizer that the token ids belong to")


class InfoResponse(BaseModel):
    """What is being served."""

    service: Literal["inference"] = "inference"
    version: str
    model: str
    fingerprint: str
    parameters: int
    vocab_size: int
    context_length: int
    device: str
    dtype: str
    defaults: dict[str, float | int]
    limits: dict[str, int]
