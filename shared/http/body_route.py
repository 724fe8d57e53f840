"""Routes whose bodies are read once, in one way whatever their size, and without holding up other requests."""

import codecs
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from shared.http.errors import ApiError, shorten, validation_error

# Up to this size JSON is read on the event loop: a few tenths of a millisecond, less than a thread costs under load.
_INLINE_BYTES = 1 << 16
# Strings, and lists and objects, of a body. A parser makes them at a few million a second, and nothing else of this
# process runs meanwhile, in whatever thread it is: they are counted before. Twice what any request of ours needs.
_MAX_PARTS = 1 << 17
# Between numbers mostly, which take 10 to 80 ns each. Of token ids, more than a megabyte of text; raw bytes take more.
_MAX_COMMAS = 1 << 21

RawEndpoint = Callable[[bytes, Request], Awaitable[Response]]


class BodyRoute(APIRoute):
    """A route for `async def endpoint(body: SomeModel, request: Request) -> Response`.

    FastAPI declares and documents it. The body is read here: to solve dependencies and to look at a body three times
    takes FastAPI longer than to encode a sentence.
    """

    raw_endpoints: ClassVar[dict[str, RawEndpoint]] = {}
    """What answers bodies of other content types than JSON."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        model = endpoint.__annotations__["body"]
        assert issubclass(model, BaseModel)
        self._model = model
        self.app = self._serve  # instead of what FastAPI made of the endpoint

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        raw = self._raw_endpoint(request)
        body = await request.body()
        if raw is not None:
            return await raw(body, request)
        fields = _parse(body) if len(body) <= _INLINE_BYTES else await anyio.to_thread.run_sync(_parse, body)
        try:
            model = self._model.model_validate(fields)
        except ValidationError as error:
            raise validation_error(error.errors(include_url=False)) from None
        response: Response = await self.endpoint(model, request)
        return response

    def _raw_endpoint(self, request: Request) -> RawEndpoint | None:
        """What answers this body as it is; None for JSON."""
        _refuse_coded_body(request.headers)
        given = request.headers.get("content-type", "")
        content_type = given.partition(";")[0].strip().lower()
        raw = self.raw_endpoints.get(content_type)
        if raw is None and not _is_json(content_type):
            kinds = " or ".join(["application/json", *self.raw_endpoints])
            message = f"send the body with the header 'Content-Type: {kinds}' (content type got: {given or 'none'})"
            raise ApiError(415, message)
        if raw is None and request.query_params:
            kinds = " and ".join(self.raw_endpoints) or "no"
            raise ApiError(400, f"query parameters are for {kinds} bodies; in JSON they are fields")
        return raw


def with_raw_body(content_type: str, endpoint: RawEndpoint) -> type[BodyRoute]:
    """A class of routes that give bodies of `content_type` to `endpoint`, and treat others as JSON."""

    class RawBodyRoute(BodyRoute):
        raw_endpoints: ClassVar = {content_type: endpoint}

    return RawBodyRoute


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )


def _refuse_coded_body(headers: Headers) -> None:
    """Refuse a compressed body by what its header says, not by what its bytes look like as JSON, text or ids."""
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() not in {"", "identity"}:
        message = f"send the body as it is, without Content-Encoding (got {shorten(coding)})"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})


def _parse(body: bytes) -> Any:
    """Read JSON in UTF-8.

    Raises:
        ApiError: 422 for what is not JSON, or has too many parts.
    """
    _check_parts(body)
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8))  # some Windows programs write it
    except ValueError as error:
        if not body:
            raise ApiError(422, "the body is missing: send a JSON object") from None
        raise ApiError(422, f"the body is not JSON in UTF-8: {error}") from None


def _check_parts(body: bytes) -> None:
    """Refuse what has too many parts, with steps that take a few milliseconds each for several megabytes."""
    if _containers(body) <= _MAX_PARTS and body.count(b'"') <= 2 * _MAX_PARTS and body.count(b",") <= _MAX_COMMAS:
        return
    # Some of these may lie within strings. Without the escapes, strings are what lies between two quotes.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > _MAX_PARTS:
        raise _too_many(strings, "strings", _MAX_PARTS)
    outside = b"".join(plain.split(b'"')[::2])
    if (containers := _containers(outside)) > _MAX_PARTS:
        raise _too_many(containers, "lists and objects", _MAX_PARTS)
    if (commas := outside.count(b",")) > _MAX_COMMAS:
        raise _too_many(commas, "commas between values", _MAX_COMMAS)


def _containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _too_many(count: int, parts: str, limit: int) -> ApiError:
    return ApiError(422, f"the body has {count:,} {parts}, the limit is {limit:,}: send several requests")
