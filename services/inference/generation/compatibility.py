"""Fields of other servers that are accepted with the one value that this server has, and refused with any other.

Most are vLLM's, whose sampling parameters many clients send in full; the others are OpenAI's.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from shared.http import StrictModel


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
    """Fields without an effect."""

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
