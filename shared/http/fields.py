"""Request models' base class and field types: strict, and safe against what JSON allows but we cannot serve."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Nothing is coerced, unknown fields are refused by name, and NaN and Infinity are no numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


def _refuse_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}") from None
    return text


Text = Annotated[str, AfterValidator(_refuse_lone_surrogates)]
