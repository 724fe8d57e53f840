"""The fields of a request that all routes that generate have in common."""

import re
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from services.inference.engine import MAX_LOGPROBS
from shared.http import AllowedSpecial, StrictModel, short_json

MAX_PROMPTS = 2048
_MAX_PROMPT_IDS = 1 << 19
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
_MAX_STOP_TOKENS = 64
_MAX_BIASES = 1024
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum")
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


def one_or_list(value: Any) -> str:
    """The tag of a value that may be a list."""
    return "(list)" if isinstance(value, list) else "(one)"


def _limit_entries(limit: int) -> BeforeValidator:
    """Refuse too many entries before each of them is validated, which takes a second for some millions."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"{len(value):,} entries exceed the limit of {limit:,}")
        return value

    return BeforeValidator(check)


def limit_prompt_ids(prompt: Any) -> Any:
    """Refuse prompts with more ids than any model's context before each of them is validated."""
    if isinstance(prompt, list):
        lists = prompt[: MAX_PROMPTS + 1] if prompt and isinstance(prompt[0], list) else [prompt]
        if sum(len(entry) for entry in lists if isinstance(entry, list)) > _MAX_PROMPT_IDS:
            raise ValueError(f"more than {_MAX_PROMPT_IDS:,} token ids in total")
    return prompt


def _biases_by_id(biases: dict[str, float]) -> dict[str, float]:
    for name in biases:
        if not _TOKEN_ID.fullmatch(name):
            raise ValueError(f"the key {short_json(name)} is not a token id, written as digits")
    return biases


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
"""Validation ends at the first invalid id: pydantic would report each of a million."""

_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_Bias = Annotated[float, Field(ge=-100, le=100)]


class NullIsAbsent(StrictModel):
    """Null is the same as absent, also for a field that does not exist."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        return {name: value for name, value in data.items() if value is not None or name in known}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        handler.resolve_ref_schema(described)["additionalProperties"] = {"type": "null"}
        return described


def _only(value: bool) -> tuple[AfterValidator, WithJsonSchema]:
    """Allow one value of a boolean. A `Literal` would accept 0 and 0.0 for false too."""

    def check(given: bool) -> bool:
        if given is not value:
            raise ValueError(f"must be {str(value).lower()}")
        return given

    return AfterValidator(check), WithJsonSchema({"type": "boolean", "const": value})


OnlyFalse = Annotated[bool, *_only(False)]
OnlyTrue = Annotated[bool, *_only(True)]


class ResponseFormat(StrictModel):
    """The format of the generated text."""

    type: Literal["text"]


class CompatibilityFields(NullIsAbsent):
    """Fields of other servers that are accepted with the one value that this server has, and refused with any other.

    Most are vLLM's, whose sampling parameters many clients send in full; the others are OpenAI's.
    """

    best_of: int | None = Field(None, description="Only the value of `n`: all choices are returned")
    max_completion_tokens: int | None = Field(None, description="Only the value of `max_tokens`")
    use_beam_search: OnlyFalse | None = Field(None, description="Only false: tokens are sampled")
    length_penalty: Annotated[float, Field(ge=1, le=1)] | None = Field(None, description="Only 1: for beam search")
    early_stopping: OnlyFalse | None = Field(None, description="Only false: for beam search")
    skip_special_tokens: OnlyTrue | None = Field(None, description="Only true: the text has no special tokens")
    spaces_between_special_tokens: bool | None = Field(None, description="Ignored: the text has no special tokens")
    include_stop_str_in_output: OnlyFalse | None = Field(None, description="Only false")
    bad_words: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="Only empty")
    priority: Annotated[int, Field(ge=0, le=0)] | None = Field(None, description="Only 0: first come, first served")
    return_token_ids: OnlyFalse | None = Field(None, description="Only false; /generate returns them")
    return_tokens_as_token_ids: OnlyFalse | None = Field(None, description="Only false; /generate returns them")
    response_format: ResponseFormat | None = Field(None, description="Only text")
    metadata: Annotated[dict[str, Any], Field(max_length=0)] | None = Field(None, description="Only empty")
    store: OnlyFalse | None = Field(None, description="Only false: nothing is stored")
    service_tier: Literal["auto", "default"] | None = Field(None, description="Ignored: there is one tier")


class StreamOptions(NullIsAbsent):
    """What a stream has besides text."""

    include_usage: bool | None = Field(None, description="One more event at the end, with `usage` and no choices")
    continuous_usage_stats: bool | None = Field(None, description="vLLM's: `usage` so far in each event")
    include_obfuscation: bool | None = Field(None, description="OpenAI's; accepted and ignored")

    def usage_field(self, usage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The field `usage` of an event with choices: that so far, null, or none at all."""
        if self.continuous_usage_stats:
            return {"usage": usage()}
        return {"usage": None} if self.include_usage else {}


class GenerationRequest(CompatibilityFields):
    """How to generate. A field that is absent or null has its default."""

    max_tokens: int | None = None
    min_tokens: int | None = Field(
        None,
        ge=0,
        description="Minimum number of tokens to generate before EOS, a stop token or a stop string can end the "
        "choice; at most max_tokens",
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0 always selects the most likely token")
    top_p: float | None = Field(
        None, ge=0, le=1, description="Sample from the most likely tokens whose probabilities sum to this; 1 disables"
    )
    top_k: int | None = Field(None, ge=-1, description="Sample from the k most likely tokens; 0 and -1 disable")
    min_p: float | None = Field(
        None, ge=0, le=1, description="Minimum probability relative to the most likely token; 0 disables"
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="Above 1: tokens of prompt and generated text become less likely; 1 disables"
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Subtracted from the logits of generated tokens"
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="The same, for each time it was generated")
    logit_bias: (
        Annotated[
            dict[str, _Bias],
            Field(max_length=_MAX_BIASES, json_schema_extra={"propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$"}}),
            AfterValidator(_biases_by_id),
            _limit_entries(_MAX_BIASES),
        ]
        | None
    ) = Field(None, description="Added to the logits of tokens: ids as strings, -100 to 100 each")
    stop: (
        Annotated[
            Annotated[_StopString, Tag("(one)")]
            | Annotated[list[_StopString], Field(max_length=MAX_STOPS), _limit_entries(MAX_STOPS), Tag("(list)")],
            Discriminator(one_or_list),
        ]
        | None
    ) = Field(None, description="One string or up to 4 that end a choice and are not part of its text")
    stop_token_ids: Annotated[TokenIds, Field(max_length=_MAX_STOP_TOKENS), _limit_entries(_MAX_STOP_TOKENS)] | None = (
        Field(None, description="Tokens that end a choice and are not part of its text")
    )
    ignore_eos: bool | None = Field(None, description="Continue after an end-of-text token")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="The same seed gives the same response; default: a random one"
    )
    n: int | None = Field(None, ge=1, description="How many choices; each has its own seed, derived from `seed`")
    stream: bool | None = Field(None, description="Respond with Server-Sent Events while generating")

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def num_choices(self) -> int:
        """How many choices for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def splits_characters(self) -> bool:
        """Whether a stream has tokens whose bytes are no whole character yet."""
        return False

    @property
    def given_tokens(self) -> list[int]:
        """The answer's first tokens, which the response does not repeat."""
        return []

    @property
    def echoes(self) -> bool:
        """Whether the prompt is put before the text of each choice."""
        return False

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate, where the request has it."""
        return self.max_tokens

    @property
    def ending_tokens(self) -> frozenset[int]:
        """Tokens that end a choice besides the model's end-of-text tokens."""
        return frozenset()

    @property
    def prompt_field(self) -> str:
        """The name of the field with the prompt, for messages."""
        return "prompt"

    @property
    def text_options(self) -> dict[str, Any]:
        """How a prompt that is a text is encoded: arguments of `Tokenizer.encode`."""
        return {}

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many alternatives to report for each token; None reports no log-probabilities."""

    @property
    @abstractmethod
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""

    @property
    @abstractmethod
    def num_prompt_logprobs(self) -> int | None:
        """How many alternatives to report for the prompt's tokens; None reports no log-probabilities of it."""


class PromptRequest(GenerationRequest):
    """How to continue a prompt. A field that is absent or null has its default."""

    allowed_special: AllowedSpecial | None = Field(
        None, description='Special tokens recognized in a text: their names, or "all"; else they are plain text'
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens to a text, such as a begin-of-text token; default: true"
    )
    continue_tokens: Annotated[TokenIds, BeforeValidator(limit_prompt_ids)] | None = Field(
        None,
        description="The answer's first tokens, such as those of a stream that was cut: the response has the rest, the "
        "same as if they had been generated. max_tokens and the penalties count them too",
    )
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Report each token's log-probability, and this many of the most likely"
    )
    echo: bool | None = Field(None, description="Put the prompt before the text of each choice")

    @property
    def given_tokens(self) -> list[int]:
        """The field `continue_tokens` as a list."""
        return self.continue_tokens or []

    @property
    def echoes(self) -> bool:
        """The field `echo`."""
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        """The field `logprobs`."""
        return self.logprobs

    @property
    def text_options(self) -> dict[str, Any]:
        """The fields `allowed_special` and `add_special_tokens`."""
        return {
            "allowed_special": self.allowed_special or (),
            "add_special_tokens": self.add_special_tokens is not False,
        }


@cache
def number_ranges() -> dict[str, dict[str, float | int]]:
    """The ranges of the numbers in a request, as its JSON schema has them; those without a choice are left out."""
    ranges = {}
    for name, field in PromptRequest.model_json_schema()["properties"].items():
        numbers = [kind for kind in field.get("anyOf", ()) if kind.get("type") in ("integer", "number")]
        bounds = {key: numbers[0][key] for key in _BOUNDS if key in numbers[0]} if numbers else {}
        if bounds and bounds.get("minimum") != bounds.get("maximum"):
            ranges[name] = bounds
    return ranges
