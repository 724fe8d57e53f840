"""Routes that read and validate a body once, the same way at any size, without blocking other requests."""

import codecs
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.concurrency import in_thread
from shared.http.errors import ApiError, short_json, validation_error

# Up to this size JSON is parsed on the event loop: a few tenths of a millisecond, less than a thread costs under load.
_INLINE_BYTES = 1 << 16
# Strings, and lists and objects, in a body. 8 MB of empty lists take 0.7 s to parse, during which no other thread of
# the process runs, so parts are counted first. A plain size limit would have to be half a megabyte for the same effect.
# This is twice what any valid request needs.
_MAX_PARTS = 1 << 17
# Mostly between numbers, which take 10 to 80 ns each. As token ids, several megabytes of text; raw bodies take more.
_MAX_COMMAS = 1 << 21
_OPENING = b"[{"
_COUNTED_BYTES = 1 << 17  # at once, so that what is compared stays in the processor's cache

RawEndpoint = Callable[[bytes, Request], Awaitable[bytes | Response]]


def operation_id(route: APIRoute) -> str:
    """The id of a route in the OpenAPI document, from which generated clients derive function names."""
    return route.name


class BodyRoute(APIRoute):
    """A route for `async def endpoint(body: SomeModel, request: Request)`, which returns JSON or a `Response`.

    FastAPI only documents it. It is found by its exact path, and its body is read here: FastAPI's router, dependencies
    and three reads of a body take longer than encoding a sentence. So it has no dependencies, path or query parameters
    or injected background tasks, and `response_model` converts nothing. The app's exception handlers are not called:
    `AdmissionMiddleware` answers an `ApiError`, and anything else with 500. Starlette's `handle` and FastAPI's
    `get_route_handler` have the same effect with a third and three quarters more CPU time for a small request.

    Args:
        path: The route's path.
        endpoint: Takes the validated body, annotated with its model, and the request.
        raw: Handlers for content types other than JSON: functions of the bytes and the request.
        options: What FastAPI documents: `response_model`, `responses`, `tags`, `openapi_extra`.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        raw: Mapping[str, RawEndpoint] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(path, endpoint, methods=["POST"], generate_unique_id_function=operation_id, **options)
        model = endpoint.__annotations__["body"]
        assert issubclass(model, BaseModel)
        self._validate = TypeAdapter(model).validator.validate_python
        self._raw = raw

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        raw = self._raw_endpoint(scope)
        message = await receive()  # `Exchange` raises if the client disconnects within the body
        body: bytes = message["body"]
        if message.get("more_body"):
            body = await _read_rest(body, receive)
        request = Request(scope, receive, send)
        if raw is not None:
            response = await raw(body, request)
        else:
            fields = _parse(body) if len(body) <= _INLINE_BYTES else await in_thread(partial(_parse, body))
            try:
                model = self._validate(fields)
            except ValidationError as error:
                raise validation_error(error.errors(include_url=False)) from None
            response = await self.endpoint(model, request)
        if isinstance(response, bytes):
            headers = [(b"content-length", b"%d" % len(response)), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": response})
        else:
            await response(scope, receive, send)

    def _raw_endpoint(self, scope: Scope) -> RawEndpoint | None:
        """The handler of raw bodies for this content type; None for JSON.

        Raises:
            ApiError: 415 for other content types and codings, 400 for query parameters beside JSON.
        """
        headers = dict(scope["headers"])
        if b"content-encoding" in headers:
            _refuse_coded_body(headers[b"content-encoding"].decode("latin-1"))
        given = headers.get(b"content-type", b"")
        media_type = _media_type(given)
        raw = self._raw.get(media_type)
        if raw is None and not _is_json(media_type):
            kinds = " or ".join(["application/json", *self._raw])
            shown = given.decode("latin-1") or "none"
            raise ApiError(415, f"send the body with the header 'Content-Type: {kinds}' (got {shown})")
        if raw is None and scope["query_string"]:
            where = f"are for {' and '.join(self._raw)} bodies" if self._raw else "have no meaning here"
            raise ApiError(400, f"query parameters {where}; in JSON they are fields")
        return raw


def add_body_routes(app: FastAPI, *routes: BodyRoute) -> None:
    """Add routes with bodies. They are found by their path alone, without FastAPI's router."""
    app.router.routes.extend(routes)  # for the OpenAPI document, and to refuse other methods
    app.user_middleware.append(Middleware(_BodyRouteMiddleware, routes=routes))  # the last one is the innermost


class _BodyRouteMiddleware:
    """Dispatches POST requests to its routes.

    FastAPI's middlewares and its router serve what these routes do not have, see `BodyRoute`.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BodyRoute]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            return self._app(scope, receive, send)
        scope["route"] = route  # as the router does: logs and metrics name it
        return route.serve(scope, receive, send)


async def _read_rest(body: bytes, receive: Receive) -> bytes:
    parts = [body]
    while True:
        message = await receive()
        parts.append(message["body"])
        if not message.get("more_body"):
            return b"".join(parts)


@lru_cache
def _media_type(content_type: bytes) -> str:
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _refuse_coded_body(coding: str) -> None:
    """Refuse compressed bodies by their header, before their bytes are parsed as JSON, text or ids."""
    if coding.strip().lower() not in {"", "identity"}:
        message = f"send the body as it is, without Content-Encoding (got {short_json(coding)})"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})


def _parse(body: bytes) -> Any:
    """Parse JSON in UTF-8.

    Raises:
        ApiError: 422 for a body that is not JSON, has too many parts, or a number of more than 4,300 digits.
    """
    if len(body) > min(_MAX_PARTS, _MAX_COMMAS):  # each takes a byte at least
        _check_parts(body)
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8))  # some Windows programs write it
    except ValueError as error:
        if not body:
            raise ApiError(422, "the body is missing: send a JSON object") from None
        raise ApiError(422, f"the body cannot be read as JSON in UTF-8: {error}") from None


def _check_parts(body: bytes) -> None:
    """Refuse a body with too many parts, in steps that take a millisecond or a few each for several megabytes."""
    if (
        _count(body, _OPENING) <= _MAX_PARTS
        and _count(body, b'"') <= 2 * _MAX_PARTS
        and _count(body, b",") <= _MAX_COMMAS
    ):
        return
    # Some of these may be within strings. Without the escapes, a string is what is between two quotes.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = _count(plain, b'"') // 2
    if strings > _MAX_PARTS:
        raise _too_many(strings, "strings", _MAX_PARTS)
    outside = b"".join(plain.split(b'"')[::2])
    if (containers := _count(outside, _OPENING)) > _MAX_PARTS:
        raise _too_many(containers, "lists and objects", _MAX_PARTS)
    if (commas := _count(outside, b",")) > _MAX_COMMAS:
        raise _too_many(commas, "commas between values", _MAX_COMMAS)


def _count(data: bytes, characters: bytes) -> int:
    """How many bytes of `data` are one of these. `bytes.count`, which looks at one at a time, takes 4 times as long."""
    count = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        block = np.frombuffer(data, np.uint8, min(_COUNTED_BYTES, len(data) - start), start)
        count += sum(int(np.count_nonzero(block == character)) for character in characters)
    return count


def _too_many(count: int, parts: str, limit: int) -> ApiError:
    return ApiError(422, f"{count:,} {parts} in the body exceed the limit of {limit:,}; send several requests")
