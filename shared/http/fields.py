"""Base class and field types of request models: strict, and safe against JSON values that cannot be served."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

_MAX_UNKNOWN_FIELDS = 3
_MAX_SPECIAL = 4096


class StrictModel(BaseModel):
    """Coerces no types, refuses unknown fields by name, and refuses NaN and Infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_excess_unknown_fields(cls, data: Any) -> Any:
        """Keep few of many unknown fields: pydantic describes each, which takes seconds for a million."""
        known = cls.__pydantic_fields__
        if not isinstance(data, dict) or len(data) <= len(known):
            return data
        unknown = [name for name in data if name not in known]
        dropped = set(unknown[_MAX_UNKNOWN_FIELDS:])
        return {name: value for name, value in data.items() if name not in dropped}


def _special_tag(value: Any) -> str:
    return "(list)" if isinstance(value, list) else "(all)"


AllowedSpecial = Annotated[
    Annotated[list[str], Field(max_length=_MAX_SPECIAL, fail_fast=True), Tag("(list)")]
    | Annotated[Literal["all"], Tag("(all)")],
    Discriminator(_special_tag),
]
"""The special tokens that are recognized in a text."""
