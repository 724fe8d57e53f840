"""One envelope for all errors, `{"error": {"message", "type", "param", "code"}}`, with OpenAI's names for the types."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from shared.http.request_context import note_error

_MAX_SHOWN_VALUE = 80
_MAX_SHOWN_FAULTS = 3
_MAX_MESSAGE = 2_000  # what a client sent, such as a field's name, is not sent back by the megabyte
_MAX_PARAM = 200

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ErrorDetail(BaseModel):
    """What went wrong, for people and for programs."""

    message: str = Field(description="One sentence: the field, the limit and the value got")
    type: str = Field(description="invalid_request_error, not_found_error, rate_limit_error, server_error, ...")
    param: str | None = Field(None, description="The field at fault, where there is one")
    code: str | None = Field(None, description="A stable name for this fault, where there is one")


class ErrorEnvelope(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An answer other than success, raised from wherever the fault is found.

    Being a Starlette `HTTPException`, it passes unchanged through FastAPI's body parsing.
    """

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status_code, message, headers)
        self.detail: str = message
        self.param = param
        self.code = code

    def envelope(self) -> dict[str, Any]:
        """The error as it goes over the wire, in a response's body or in a stream's last frame."""
        return error_envelope(self.status_code, self.detail, param=self.param, code=self.code)


def error_envelope(
    status_code: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Build the envelope; the type follows from the status."""
    message, param = _cut(message, _MAX_MESSAGE), param and _cut(param, _MAX_PARAM)
    fallback = "server_error" if status_code >= 500 else "invalid_request_error"
    detail = ErrorDetail(message=message, type=_TYPES.get(status_code, fallback), param=param, code=code)
    return ErrorEnvelope(error=detail).model_dump()


def error_response(error: ApiError) -> Response:
    """Build the response that an error is, and tell the request's record."""
    note_error(error.code)
    return JSONResponse(error.envelope(), error.status_code, error.headers)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def error_responses(*status_codes: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` argument: documents the envelope for these status codes."""
    return {code: {"model": ErrorEnvelope, "description": HTTPStatus(code).phrase} for code in status_codes}


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` use the envelope, those of the framework included."""
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_response(error)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is nothing at {_request.url.path}; /docs lists what there is"
    elif error.status_code == 405:
        allowed = Headers(error.headers or {}).get("allow", "another method")
        message = f"{_request.method} is not for {_request.url.path}, use {allowed}"
    return JSONResponse(error_envelope(error.status_code, message), error.status_code, error.headers)


async def _validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # FastAPI puts in front where the value was: "path" or "query".
    faults = [{**fault, "loc": fault["loc"][1:]} for fault in error.errors()]
    return error_response(validation_error(faults))


def validation_error(faults: Sequence[Any]) -> ApiError:
    """The 422 that names the first of the faults which pydantic found."""
    shown = "; ".join(_describe(fault) for fault in faults[:_MAX_SHOWN_FAULTS])
    more = f"; and {len(faults) - _MAX_SHOWN_FAULTS} more" if len(faults) > _MAX_SHOWN_FAULTS else ""
    return ApiError(422, shown + more, param=_path(faults[0]) or None)


def _describe(fault: Mapping[str, Any]) -> str:
    """One validation fault as `field: what is wrong (got value)`."""
    path = _path(fault)
    if fault["type"] == "missing":
        return f"{path}: this field is required"
    if fault["type"] == "extra_forbidden":
        return f"{path}: there is no such field"
    message = fault["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{path or 'body'}: {message} (got {shorten(fault['input'])})"


def _path(fault: Mapping[str, Any]) -> str:
    """The field's path as a JavaScript programmer writes it: `tokens[3]`. Names in parentheses are union tags."""
    path = ""
    for part in fault["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("("):
            name = part if len(part) <= _MAX_SHOWN_VALUE else part[:_MAX_SHOWN_VALUE] + "..."
            path += f".{name}" if path else name
    return path


def shorten(value: Any) -> str:
    """Show a value in a message: as JSON, in ASCII, cut where long."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, str):
        value = value[: _MAX_SHOWN_VALUE + 1]
    elif isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    shown = json.dumps(value, default=repr)
    return shown if len(shown) <= _MAX_SHOWN_VALUE else shown[:_MAX_SHOWN_VALUE] + "..."
