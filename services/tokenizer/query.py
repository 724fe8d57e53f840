"""Raw bodies: their content types, and their query parameters."""

from typing import Any, Literal

import numpy as np
from starlette.datastructures import QueryParams

from shared.bpe import Tokenizer
from shared.http import ApiError, short_json

TEXT = "text/plain"
IDS = "application/octet-stream"

_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class RawQuery:
    """The query parameters of a request with a raw body.

    Args:
        params: The parameters that the client sent.
        known: The names that may occur.

    Raises:
        ApiError: 422, for an unknown name; from the methods, for an invalid value.
    """

    def __init__(self, params: QueryParams, *known: str) -> None:
        self._params = params
        for name in params:
            if name not in known:
                message = f"{short_json(name)}: unknown query parameter for this body; use {', '.join(known)}"
                raise ApiError(422, message)

    def flag(self, name: str) -> bool:
        """A boolean, false by default."""
        return self._one_of(name, "false", "true") == "true"

    def names(self, name: str) -> list[str] | Literal["all"]:
        """All values of a parameter, or "all"."""
        names = self._params.getlist(name)
        return "all" if names == ["all"] else names

    def errors(self) -> Literal["replace", "strict"]:
        """How to decode bytes that are not UTF-8."""
        return "strict" if self._one_of("errors", "replace", "strict") == "strict" else "replace"

    def dtype(self, tokenizer: Tokenizer) -> np.dtype[Any]:
        """The type of ids; by default the type of token files.

        Raises:
            ApiError: 400, if the type is too narrow for the vocabulary.
        """
        fits_uint16 = tokenizer.vocab_size <= 1 << 16
        name = self._one_of("dtype", "uint16" if fits_uint16 else "uint32", "uint16", "uint32")
        if name == "uint16" and not fits_uint16:
            largest = tokenizer.vocab_size - 1
            message = f"dtype: uint16 holds ids up to 65535, but this tokenizer has ids up to {largest}; use uint32"
            raise ApiError(400, message, param="dtype")
        return _DTYPES[name]

    def _one_of(self, name: str, default: str, *others: str) -> str:
        values = self._params.getlist(name) or [default]
        if len(values) == 1 and values[0] in (default, *others):
            return values[0]
        choices = " or ".join(dict.fromkeys((default, *others)))
        raise ApiError(422, f"{name}: must be {choices}, once (got {short_json(', '.join(values))})", param=name)
