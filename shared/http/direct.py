"""Answer small, well-formed JSON requests without the framework: routing and validation cost it more than the work."""

from collections.abc import Callable, Mapping

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.errors import ApiError, error_response

_MAX_DIGITS = 10

DirectAnswer = Callable[[bytes], bytes | ASGIApp]


def answer_directly(app: FastAPI, answers: Mapping[str, DirectAnswer], *, max_bytes: int) -> None:
    """Let functions answer POST requests to routes of `app`, which are declared already, where this is simple.

    A function gets the body, JSON by its content type, and returns the JSON of an answer with status 200, or what will
    answer, which may raise `ApiError` before it begins to. It runs on the event loop, within all middleware. What is
    not as simple takes the route: a function that raises `ValueError` or `ApiError` has found something unusual, and
    the route is the only place that knows how to say what is wrong.

    Args:
        app: The app.
        answers: Functions by path; what each answers must be what the route would have answered.
        max_bytes: Larger bodies take the route, since they would hold up the event loop.
    """
    routes = {route.path: route for route in app.routes if isinstance(route, APIRoute)}
    direct = {path: (routes[path], answer) for path, answer in answers.items()}
    # The last one is the innermost.
    app.user_middleware.append(Middleware(_DirectMiddleware, direct=direct, max_bytes=max_bytes))


class _DirectMiddleware:
    def __init__(self, app: ASGIApp, direct: Mapping[str, tuple[APIRoute, DirectAnswer]], max_bytes: int) -> None:
        self._app = app
        self._direct = direct
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._direct.get(scope.get("path", ""))
        if found is None or scope["type"] != "http" or scope["method"] != "POST" or not self._is_plain(scope):
            await self._app(scope, receive, send)
            return
        first = await receive()  # raises nothing, since the server keeps to the length that is announced
        content = self._answer(found[1], first)
        if content is None:
            await self._app(scope, _beginning_with(first, receive), send)
            return
        scope["route"] = found[0]  # as the router does: logs and metrics name it
        if not isinstance(content, bytes):
            try:
                await content(scope, receive, send)
            except ApiError as error:
                await error_response(error)(scope, receive, send)
            return
        length = str(len(content)).encode()
        headers = [(b"content-length", length), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _is_plain(self, scope: Scope) -> bool:
        """Whether the body is plain JSON, by a header as most clients write it, and of a known size that is small."""
        headers = scope["headers"]
        length = next((value for name, value in headers if name == b"content-length"), b"")
        is_small = len(length) < _MAX_DIGITS and length.isdigit() and int(length) <= self._max_bytes
        is_json = (b"content-type", b"application/json") in headers
        is_coded = any(name == b"content-encoding" for name, _ in headers)
        return is_small and is_json and not is_coded and not scope["query_string"]

    def _answer(self, answer: DirectAnswer, message: Message) -> bytes | ASGIApp | None:
        if message["type"] != "http.request" or message.get("more_body"):
            return None
        try:
            return answer(message["body"])
        except (ValueError, ApiError):
            return None


def _beginning_with(message: Message, receive: Receive) -> Receive:
    messages = [message]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
