"""What a request for a fixed answer costs: a client may ask again and again, and all others wait meanwhile."""

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

# With those of TestClient, a route takes 1,300 to 1,500, /metrics 4,300; to make the schema of a request takes 10,000.
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
    """Not even what takes milliseconds: the JSON schema, made for each GET of /info, let one client stop all others."""
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
