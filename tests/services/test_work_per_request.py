"""Cost of GET requests on the event loop: while one is handled, all others wait."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from services.inference.app import create_app as create_inference
from services.inference.settings import InferenceSettings
from services.tokenizer.app import create_app as create_tokenizer
from services.tokenizer.settings import TokenizerSettings
from tests.services.conftest import ready_client

# Calls including those of TestClient: 1,300 to 1,500 for a route, 4,300 for /metrics; a JSON schema takes 10,000.
MOST_CALLS = 6000


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls of Python functions in threads that start meanwhile."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1

    threading.setprofile(note)
    try:
        yield calls
    finally:
        threading.setprofile(None)


@pytest.mark.case("D03")
@pytest.mark.parametrize("service", ["inference", "tokenizer"])
def test_nothing_that_stays_the_same_is_made_for_each_request(service: str, model_dir: Path) -> None:
    """`/info` once built a JSON schema for each request, which blocked the event loop for 14 ms."""
    if service == "inference":
        app = create_inference(InferenceSettings(model_dir=model_dir, threads=1))
    else:
        app = create_tokenizer(TokenizerSettings(model_dir=model_dir))
    paths = [path for path, operations in app.openapi()["paths"].items() if "get" in operations and "{" not in path]
    paths += ["/", "/docs", "/openapi.json"]
    with counted_calls() as calls, ready_client(app) as client:
        found = {}
        for path in paths:
            assert client.get(path).status_code in {200, 404, 405}  # /training: no record; /vocabulary: a POST
            calls.clear()
            client.get(path)
            found[path] = calls.total()
    assert {path: count for path, count in found.items() if not 50 < count < MOST_CALLS} == {}
