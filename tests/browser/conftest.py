"""Chromium, and services to open in it. A page of these tests may not fail, warn or ask another host for anything."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.services.conftest import Process, _quiet, model_dir, serve, tokenizer, wait_until

__all__ = ["Process", "_quiet", "model_dir", "serve", "tokenizer", "wait_until"]

HERE = Path(__file__).parent
LOCAL = {"127.0.0.1", "localhost", ""}
WIDTHS = (360, 1280)
PATIENCE = 60_000  # ms; machines stall
# Without windows of its own Chromium takes a third of the CPU time for a page.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.extended)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The distribution's Chromium; skips where there is none, but fails in CI.

    Ended after each module: while it is there, Playwright's event loop counts as running, and no test can have its own.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        reason = "the browser tests need Chromium (apt-get install chromium-headless-shell; on Ubuntu chromium-browser)"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # No name of another host resolves. (A route would have each request wait for Python: 0.5 s more for a page.)
        only_here = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", only_here])
        yield browser
        browser.close()


def is_listening(url: str) -> bool:
    """Whether a service still answers there."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "127.0.0.1", parts.port or 80)) == 0


class Watched:
    """What a page did that no page may do."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.expected: list[str] = []

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._console)

    def _console(self, message: ConsoleMessage) -> None:
        text, url = message.text, message.location["url"]
        if message.type not in ("error", "warning") or any(part in text for part in self.expected):
            return
        if "net::ERR_CONNECTION" in text and not is_listening(url):
            return  # the test has ended, and its service before the page
        self.faults.append(f"console {message.type}: {text} ({url})")

    def check_host(self, request: Request) -> None:
        if urlsplit(request.url).hostname not in LOCAL and not request.url.startswith(("data:", "blob:", "file:")):
            self.faults.append(f"asked another host: {request.url}")


@pytest.fixture
def watched() -> Watched:
    """Add to `expected` parts of console messages that a test causes, such as "401" where a key is missing."""
    return Watched()


@pytest.fixture
def new_context(chromium: Browser, watched: Watched) -> Iterator[Callable[..., BrowserContext]]:
    """Open a context of its own, with the options of Playwright's `new_context`. Faults fail the test at its end."""
    contexts = []

    def open_context(**options: Any) -> BrowserContext:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.on("request", watched.check_host)
        context.on("page", watched.watch)
        return context

    yield open_context
    for context in contexts:
        context.close()
    assert not watched.faults


@pytest.fixture
def page(new_context: Callable[..., BrowserContext]) -> Page:
    """A page of 1280 by 900 that may use the clipboard."""
    return new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()


@contextmanager
def service(name: str, model: Path, **settings: object) -> Iterator[Process]:
    """A service as a process of its own, ready to be asked."""
    process = Process("-m", f"services.{name}", model_dir=model, **settings)
    process.wait_listening()
    # A full pipe would stop a service that logs.
    readers = [
        threading.Thread(target=stream.read) for stream in (process.popen.stdout, process.popen.stderr) if stream
    ]
    for reader in readers:
        reader.start()
    try:
        yield process.wait_ready()
    finally:
        process.popen.kill()
        for reader in readers:
            reader.join()
        process.popen.communicate()


@pytest.fixture(scope="session")
def inference_url(model_dir: Path) -> Iterator[str]:
    with service("inference", model_dir) as process:
        yield process.url


@pytest.fixture(scope="session")
def tokenizer_url(model_dir: Path) -> Iterator[str]:
    with service("tokenizer", model_dir) as process:
        yield process.url


def check_layout(page: Page) -> None:
    """At a phone's width and on a desktop, nothing makes the whole page scroll sideways."""
    before = page.viewport_size
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{over} pixels too wide at {width}"
    assert before is not None
    page.set_viewport_size(before)


def check_accessibility(page: Page) -> None:
    """axe-core finds nothing serious or critical, in both color schemes."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        violations = Axe().run(page).response["violations"]
        bad = [
            (found["id"], [node["html"][:200] for node in found["nodes"]][:5])
            for found in violations
            if found["impact"] in ("serious", "critical")
        ]
        assert not bad, f"{scheme}: {json.dumps(bad, indent=1)}"
