"""Fields of other servers that clients send whether they mean something or not.

They are accepted where they ask for what happens anyway, and refused by name where they ask for anything else. Most are
vLLM's, whose sampling parameters many clients send in full; the others are OpenAI's.
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
    """What lets a boolean be only this one. A `Literal` would not do: to it, 0 and 0.0 are false too."""

    def check(given: bool) -> bool:
        if given is not value:
            raise ValueError(f"this can only be {str(value).lower()}")
        return given

    return AfterValidator(check), WithJsonSchema({"type": "boolean", "const": value})


OnlyFalse = Annotated[bool, *_only(False)]
OnlyTrue = Annotated[bool, *_only(True)]


class ResponseFormat(StrictModel):
    """The format of an answer: text."""

    type: Literal["text"]


class NeutralFields(NullIsAbsent):
    """What may be asked for and happens anyway."""

    best_of: int | None = Field(None, description="Only as much as `n`: all answers are returned")
    max_completion_tokens: int | None = Field(None, description="Only as much as `max_tokens`")
    use_beam_search: OnlyFalse | None = Field(None, description="Only false: answers are drawn")
    length_penalty: Annotated[float, Field(ge=1, le=1)] | None = Field(None, description="Only 1: of beam search")
    early_stopping: OnlyFalse | None = Field(None, description="Only false: of beam search")
    skip_special_tokens: OnlyTrue | None = Field(None, description="Only true: special tokens are no text")
    spaces_between_special_tokens: bool | None = Field(None, description="Ignored: special tokens are no text")
    include_stop_str_in_output: OnlyFalse | None = Field(None, description="Only false")
    bad_words: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="Only empty")
    priority: Annotated[int, Field(ge=0, le=0)] | None = Field(None, description="Only 0: requests are served in turn")
    return_token_ids: OnlyFalse | None = Field(None, description="Only false; /generate has them")
    return_tokens_as_token_ids: OnlyFalse | None = Field(None, description="Only false; /generate has them")
    response_format: ResponseFormat | None = Field(None, description="Only text")
    metadata: Annotated[dict[str, Any], Field(max_length=0)] | None = Field(None, description="Only empty")
    store: OnlyFalse | None = Field(None, description="Only false: nothing is kept")
    service_tier: Literal["auto", "default"] | None = Field(None, description="Ignored: there is one")
