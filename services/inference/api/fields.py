"""What a request may say about how to continue its prompt, on every route that generates."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from services.inference.api.neutral_fields import NeutralFields
from shared.http import AllowedSpecial, refuse_lone_surrogates, shorten

MAX_PROMPTS = 2048
_MAX_PROMPT_IDS = 1 << 19
_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 256
_MAX_STOP_TOKENS = 64
_MAX_BIASES = 1024
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


def one_or_list(value: Any) -> str:
    """The tag of a value that may be a list."""
    return "(list)" if isinstance(value, list) else "(one)"


def _count_first(limit: int) -> BeforeValidator:
    """Refuse what has too many entries before each of them is looked at, which takes a second for some millions."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"there are {len(value):,} entries, the limit is {limit:,}")
        return value

    return BeforeValidator(check)


def count_prompt_ids(prompt: Any) -> Any:
    """Refuse prompts of more ids than any model's context holds before each of them is looked at."""
    if isinstance(prompt, list):
        lists = prompt[: MAX_PROMPTS + 1] if prompt and isinstance(prompt[0], list) else [prompt]
        if sum(len(entry) for entry in lists if isinstance(entry, list)) > _MAX_PROMPT_IDS:
            raise ValueError(f"there are more than {_MAX_PROMPT_IDS:,} entries in all")
    return prompt


def _biases_by_id(biases: dict[str, float]) -> dict[str, float]:
    for name in biases:
        if not _TOKEN_ID.fullmatch(name):
            raise ValueError(f"the key {shorten(name)} is no token id as a string of digits")
    return biases


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
"""The first wrong id is enough: pydantic would describe each of a million."""

_StopString = Annotated[
    str, Field(min_length=1, max_length=_MAX_STOP_CHARACTERS), AfterValidator(refuse_lone_surrogates)
]
_Bias = Annotated[float, Field(ge=-100, le=100)]


class ContinuationRequest(NeutralFields):
    """How to continue a prompt. Absent and null are the same: the default."""

    allowed_special: AllowedSpecial | None = Field(
        None, description='Special tokens recognized in a text: their names, or "all"; else they are plain text'
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's own to a text, such as a begin-of-text token; default: true"
    )
    max_tokens: int | None = None
    min_tokens: int | None = Field(
        None, ge=0, description="Tokens before which no token and no stop string ends the answer; at most max_tokens"
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
    logit_bias: (
        Annotated[
            dict[str, _Bias],
            Field(max_length=_MAX_BIASES, json_schema_extra={"propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$"}}),
            AfterValidator(_biases_by_id),
            _count_first(_MAX_BIASES),
        ]
        | None
    ) = Field(None, description="Added to the logits of tokens: ids as strings, -100 to 100 each")
    stop: (
        Annotated[
            Annotated[_StopString, Tag("(one)")]
            | Annotated[list[_StopString], Field(max_length=_MAX_STOPS), _count_first(_MAX_STOPS), Tag("(list)")],
            Discriminator(one_or_list),
        ]
        | None
    ) = Field(None, description="A string, or up to 4, that end the answer and are not part of it")
    stop_token_ids: Annotated[TokenIds, Field(max_length=_MAX_STOP_TOKENS), _count_first(_MAX_STOP_TOKENS)] | None = (
        Field(None, description="Tokens that end the answer and are not part of its text")
    )
    ignore_eos: bool | None = Field(None, description="Go on after an end-of-text token")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="The same seed gives the same answer; default: a random one"
    )
    n: int | None = Field(None, ge=1, description="How many answers; each has its own seed, made from `seed`")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Report each token's log-probability, and this many of the likeliest"
    )
    echo: bool | None = Field(None, description="Put the prompt before the answer's text")
    stream: bool | None = Field(None, description="Answer as Server-Sent Events while generating")

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def num_choices(self) -> int:
        """How many answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many alternatives to report for the prompt's tokens; None reports no log-probabilities of it."""
        raise NotImplementedError
