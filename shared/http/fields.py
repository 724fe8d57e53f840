"""Request models' base class and field types: strict, and safe against what JSON allows but we cannot serve."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

_MAX_UNKNOWN_FIELDS = 3
_MAX_SPECIAL = 4096


class StrictModel(BaseModel):
    """Nothing is coerced, unknown fields are refused by name, and NaN and Infinity are no numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, data: Any) -> Any:
        """Keep the first unknown fields only: pydantic would describe each of a million, for as many seconds."""
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        if data.keys() <= known.keys():
            return data
        unknown = [name for name in data if name not in known]
        dropped = set(unknown[_MAX_UNKNOWN_FIELDS:])
        return {name: value for name, value in data.items() if name not in dropped}


def refuse_lone_surrogates(text: str) -> str:
    """Let pass what UTF-8 can say."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}") from None
    return text


def _kind_of_special(value: Any) -> str:
    return "(list)" if isinstance(value, list) else "(all)"


Text = Annotated[str, AfterValidator(refuse_lone_surrogates)]
AllowedSpecial = Annotated[
    Annotated[list[Text], Field(max_length=_MAX_SPECIAL, fail_fast=True), Tag("(list)")]
    | Annotated[Literal["all"], Tag("(all)")],
    Discriminator(_kind_of_special),
]
"""The special tokens that are recognized in a text."""
