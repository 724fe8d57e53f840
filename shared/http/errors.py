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
from starlette.types import Scope

from shared.http.request_context import record_error

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before its response

SERVER_REFUSAL = "ownlm.refusal"
"""The extension of an ASGI scope in which the server leaves the `ApiError` that a request is answered with."""

_MAX_SHOWN_VALUE = 80
_MAX_SHOWN_ERRORS = 3
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
    """What went wrong, readable by people and by programs."""

    message: str = Field(description="One sentence: the field, the limit and the value received")
    type: str = Field(description="invalid_request_error, not_found_error, rate_limit_error, server_error, ...")
    param: str | None = Field(None, description="The invalid field, if there is one")
    code: str | None = Field(None, description="A stable name of this error, if it has one")


class ErrorEnvelope(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An error response, raised from anywhere below a route.

    As a Starlette `HTTPException`, it passes unchanged through FastAPI's body parsing.
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
        """The error as sent, in a response's body or in a stream's last event."""
        return error_envelope(self.status_code, self.detail, param=self.param, code=self.code)


def error_envelope(
    status_code: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Build the envelope; the type follows from the status."""
    message, param = _truncated(message, _MAX_MESSAGE), param and _truncated(param, _MAX_PARAM)
    fallback = "server_error" if status_code >= 500 else "invalid_request_error"
    detail = ErrorDetail(message=message, type=_TYPES.get(status_code, fallback), param=param, code=code)
    return ErrorEnvelope(error=detail).model_dump()


def error_response(error: ApiError) -> Response:
    """Build the response to an error, and record its code for the log."""
    record_error(error.code)
    return _as_json(error.envelope(), error.status_code, error.headers)


def server_refusal(scope: Scope) -> ApiError | None:
    """The error with which the server refuses a request; None where it does not, or has not yet."""
    extensions = scope.get("extensions")
    error: ApiError | None = extensions.get(SERVER_REFUSAL, {}).get("error") if extensions else None
    return error


def error_responses(*status_codes: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` argument: documents the envelope for these status codes."""
    return {code: {"model": ErrorEnvelope, "description": HTTPStatus(code).phrase} for code in status_codes}


def install_error_handlers(app: FastAPI) -> None:
    """Make all errors of `app` use the envelope, including those of the framework."""
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _internal_error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_response(error)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"no route for {request.url.path}; /openapi.json lists the routes"
    elif error.status_code == 405:
        allowed = Headers(error.headers or {}).get("allow", "another method")
        message = f"{request.method} is not allowed for {request.url.path}, use {allowed}"
    return _as_json(error_envelope(error.status_code, message), error.status_code, error.headers)


def _as_json(envelope: dict[str, Any], status_code: int, headers: Mapping[str, str] | None) -> Response:
    """Errors quote what was sent, so no browser may take them for anything but JSON."""
    return JSONResponse(envelope, status_code, {**(headers or {}), "X-Content-Type-Options": "nosniff"})


async def _validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # FastAPI prepends the value's location, "path" or "query".
    errors = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    return error_response(validation_error(errors))


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(internal_error())  # Starlette raises the exception again, and our middleware logs it


def internal_error() -> ApiError:
    """The 500 for an exception that is not an `ApiError`."""
    return ApiError(500, "internal error; the server's log has the details")


def validation_error(errors: Sequence[Any]) -> ApiError:
    """The 422 for pydantic's `errors()`, with the first few of them in its message."""
    shown = "; ".join(_describe(error) for error in errors[:_MAX_SHOWN_ERRORS])
    more = f"; and {len(errors) - _MAX_SHOWN_ERRORS} more" if len(errors) > _MAX_SHOWN_ERRORS else ""
    return ApiError(422, shown + more, param=_path(errors[0]) or None)


def _describe(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors as `field: what is wrong (got value)`."""
    path = _path(error)
    if error["type"] == "missing":
        return f"{path}: this field is required"
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown field"
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{path or 'body'}: {message} (got {short_json(error['input'])})"


def _path(error: Mapping[str, Any]) -> str:
    """The field's path in JavaScript's notation: `tokens[3]`. Parts in parentheses are tags of a union."""
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("("):
            name = part if len(part) <= _MAX_SHOWN_VALUE else part[:_MAX_SHOWN_VALUE] + "..."
            path += f".{name}" if path else name
    return path


def _truncated(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def short_json(value: Any) -> str:
    """A value for a message: as JSON, in ASCII, truncated if long."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, str):
        value = value[: _MAX_SHOWN_VALUE + 1]
    elif isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    shown = json.dumps(value, default=repr)
    return shown if len(shown) <= _MAX_SHOWN_VALUE else shown[:_MAX_SHOWN_VALUE] + "..."
