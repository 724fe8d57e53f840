"""What the inference service reads and writes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from shared.http import StrictModel, Text

_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 256

StopString = Annotated[Text, Field(min_length=1, max_length=_MAX_STOP_CHARACTERS)]


def _one_or_list(value: Any) -> str:
    return "(list)" if isinstance(value, list) else "(one)"


class GenerateRequest(StrictModel):
    """A prompt and how to continue it. Absent and null are the same: the default."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0.8, "stream": True},
                {"prompt": [1, 2, 3], "temperature": 0, "stop": ["\n", "The end"]},
            ]
        }
    )

    prompt: Annotated[
        # The first wrong id is enough: pydantic would describe each of a million.
        Annotated[Text, Tag("(one)")]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True), Tag("(list)")],
        Discriminator(_one_or_list),
    ] = Field(description="Text (special tokens in it stay plain text), or token ids that are used as they are")
    max_tokens: int | None = Field(
        None, ge=0, description="The most tokens to generate; default: what /info says, or fewer where the context ends"
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0 always takes the likeliest token")
    top_p: float | None = Field(
        None, ge=0, le=1, description="Draw from the likeliest tokens that sum to this; 1 is off"
    )
    top_k: int | None = Field(None, ge=-1, description="Draw from the k likeliest tokens; 0 and -1 are off")
    min_p: float | None = Field(
        None, ge=0, le=1, description="Draw from tokens at least this times as likely as the likeliest; 0 is off"
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="Above 1: tokens of the prompt and the answer become less likely; 1 is off"
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Subtracted from logits of tokens in the answer"
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="The same, for each time they are in it")
    stop: (
        Annotated[
            Annotated[StopString, Tag("(one)")]
            | Annotated[list[StopString], Field(max_length=_MAX_STOPS), Tag("(list)")],
            Discriminator(_one_or_list),
        ]
        | None
    ) = Field(None, description="A string, or up to 4, that end the answer and are not part of it")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="The same seed gives the same answer; default: random, and returned"
    )
    n: int | None = Field(None, ge=1, description="How many answers; each has its own seed, made from `seed`")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Report each generated token's log-probability, and this many of the likeliest"
    )
    echo: bool | None = Field(None, description="Put the prompt before the answer's text")
    ignore_eos: bool | None = Field(None, description="Go on after an end-of-text token")
    stream: bool | None = Field(None, description="Answer as Server-Sent Events while generating")

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class TopLogprob(BaseModel):
    """A token and its log-probability under the model's own distribution; -9999 is the lowest."""

    id: int
    token: str = Field(description="The token as text; parts of characters show as U+FFFD")
    bytes: list[int] = Field(description="The token's bytes: those of all tokens joined are the text")
    logprob: float


class TokenLogprob(TopLogprob):
    """A generated token with its likeliest alternatives."""

    top_logprobs: list[TopLogprob]


class ChoiceResponse(BaseModel):
    """One answer, or in a stream what was added to it."""

    index: int
    text: str
    tokens: list[int] = Field(description="The generated tokens; one that ended the answer is the last of them")
    logprobs: list[TokenLogprob] | None
    finish_reason: Literal["stop", "length"] | None = Field(description="In a stream null, until the last part")
    stop_reason: str | int | None = Field(description="The stop string or the id of the token that ended the answer")


class Usage(BaseModel):
    """What was read and written, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


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
