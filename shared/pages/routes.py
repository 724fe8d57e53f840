"""Routes of pages."""

from collections.abc import Iterable, Sequence
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from shared.pages.security import SecurityHeaders

_ASSET = "/assets/{file}"
_TYPES = (".css", ".js", ".png", ".svg")


class _PageFiles(StaticFiles):
    """Browsers ask each time whether a file has changed, so that no page runs old code."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def page_routes(packages: Sequence[str], *, assets: Iterable[tuple[str, str]] = ()) -> list[Route]:
    """Routes for `index.html` at /, `NAME.html` at /NAME, and every file at /assets/FILE.

    The common assets are beside those of the packages. Pages refer to files by relative addresses (`assets/base.css`),
    so that a proxy may serve them below a path of its own.

    Args:
        packages: Packages whose folders hold pages and their files.
        assets: Folders of further files: a package and a folder within it.
    """
    files = _PageFiles(packages=[*((name, "") for name in packages), ("shared.pages", "assets"), *assets])

    async def asset(request: Request) -> ASGIApp:
        if not request.path_params["file"].endswith(_TYPES):
            raise HTTPException(404)
        return SecurityHeaders(await files.get_response(request.path_params["file"], request.scope))

    def page(name: str) -> Route:
        async def send_page(request: Request) -> ASGIApp:
            return SecurityHeaders(await files.get_response(f"{name}.html", request.scope))

        return Route("/" if name == "index" else f"/{name}", send_page, include_in_schema=False)

    return [*map(page, _page_names(packages)), Route(_ASSET, asset, include_in_schema=False)]


def is_page_path(path: str, routes: Iterable[Route]) -> bool:
    """Whether one of the `routes` of pages takes this path."""
    return any(route.path_regex.match(path) for route in routes)


def _page_names(packages: Iterable[str]) -> list[str]:
    files = (file.name for package in packages for file in resources.files(package).iterdir())
    return sorted(name.removesuffix(".html") for name in files if name.endswith(".html"))
