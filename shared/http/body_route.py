"""Routes whose bodies are read once, in one way whatever their size, and without holding up other requests."""

import codecs
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response, shorten, validation_error

# Up to this size JSON is read on the event loop: a few tenths of a millisecond, less than a thread costs under load.
_INLINE_BYTES = 1 << 16
# Strings, and lists and objects, of a body. A parser makes them at a few million a second, and nothing else of this
# process runs meanwhile, in whatever thread it is: they are counted before. Twice what any request of ours needs.
_MAX_PARTS = 1 << 17
# Between numbers mostly, which take 10 to 80 ns each. Of token ids, more than a megabyte of text; raw bytes take more.
_MAX_COMMAS = 1 << 21

RawEndpoint = Callable[[bytes, Request], Awaitable[Response]]


def operation_id(route: APIRoute) -> str:
    """The name of a route in the OpenAPI document, after which generated clients name their functions."""
    return route.name


class BodyRoute(APIRoute):
    """A route for `async def endpoint(body: SomeModel, request: Request) -> Response`.

    FastAPI declares and documents it. The body is read here: to solve dependencies and to look at a body three times
    takes FastAPI longer than to encode a sentence.

    Args:
        path: The route's path.
        endpoint: Takes the validated body, annotated with its model, and the request.
        raw: What answers bodies of other content types than JSON: functions of the bytes and the request.
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
        self._model = model
        self._raw = raw
        self.app = self.serve  # instead of what FastAPI made of the endpoint

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        raw = self._raw_endpoint(scope)
        body = await _read(receive)
        request = Request(scope, receive, send)
        if raw is not None:
            response = await raw(body, request)
        else:
            fields = _parse(body) if len(body) <= _INLINE_BYTES else await anyio.to_thread.run_sync(_parse, body)
            try:
                model = self._model.model_validate(fields)
            except ValidationError as error:
                raise validation_error(error.errors(include_url=False)) from None
            response = await self.endpoint(model, request)
        await response(scope, receive, send)

    def _raw_endpoint(self, scope: Scope) -> RawEndpoint | None:
        """What answers this body as it is; None for JSON.

        Raises:
            ApiError: 415 for other content types and codings, 400 for query parameters beside JSON.
        """
        headers = dict(scope["headers"])
        _refuse_coded_body(headers.get(b"content-encoding", b"").decode("latin-1"))
        given = headers.get(b"content-type", b"").decode("latin-1")
        content_type = given.partition(";")[0].strip().lower()
        raw = self._raw.get(content_type)
        if raw is None and not _is_json(content_type):
            kinds = " or ".join(["application/json", *self._raw])
            message = f"send the body with the header 'Content-Type: {kinds}' (content type got: {given or 'none'})"
            raise ApiError(415, message)
        if raw is None and scope["query_string"]:
            kinds = " and ".join(self._raw) or "no"
            raise ApiError(400, f"query parameters are for {kinds} bodies; in JSON they are fields")
        return raw


def add_body_routes(app: FastAPI, *routes: BodyRoute) -> None:
    """Give an app its routes with bodies. They are found by their path alone, without FastAPI's router."""
    app.router.routes.extend(routes)  # for the OpenAPI document, and to refuse other methods
    app.user_middleware.append(Middleware(_BodyRoutes, routes=routes))  # the last one is the innermost


class _BodyRoutes:
    """Answers POST requests to its routes.

    On their way to a route, requests pass three middlewares and a router of FastAPI's, all for what these routes have
    not: dependencies, files, paths with parameters. That takes as long as to encode a sentence.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BodyRoute]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # as the router does: logs and metrics name it
        try:
            await route.serve(scope, receive, send)
        except ApiError as error:
            await error_response(error)(scope, receive, send)


async def _read(receive: Receive) -> bytes:
    """The body of a request; `BodyLimitMiddleware` raises where the client leaves within it."""
    message = await receive()
    body: bytes = message["body"]
    if not message.get("more_body"):
        return body
    parts = [body]
    while message.get("more_body"):
        message = await receive()
        parts.append(message["body"])
    return b"".join(parts)


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )


def _refuse_coded_body(coding: str) -> None:
    """Refuse a compressed body by what its header says, not by what its bytes look like as JSON, text or ids."""
    if coding.strip().lower() not in {"", "identity"}:
        message = f"send the body as it is, without Content-Encoding (got {shorten(coding)})"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})


def _parse(body: bytes) -> Any:
    """Read JSON in UTF-8.

    Raises:
        ApiError: 422 for what is not JSON, has too many parts, or a number of more than 4,300 digits.
    """
    if len(body) > _MAX_PARTS:
        _check_parts(body)
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8))  # some Windows programs write it
    except ValueError as error:
        if not body:
            raise ApiError(422, "the body is missing: send a JSON object") from None
        raise ApiError(422, f"the body cannot be read as JSON in UTF-8: {error}") from None


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
