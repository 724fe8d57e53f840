"""One server of the tiny model for the tests of all routes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from tests.services.conftest import ready_client

CONTEXT = 128


@pytest.fixture(scope="package")
def client(model_dir: Path) -> Iterator[TestClient]:
    with ready_client(create_app(InferenceSettings(model_dir=model_dir, threads=1, prefill_tokens=16))) as client:
        yield client


@pytest.fixture
def complete(client: TestClient) -> Any:
    """Ask /v1/completions for an answer: `complete(prompt="a", max_tokens=5)`."""

    def ask(**body: Any) -> Any:
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture
def chunks(client: TestClient) -> Any:
    """Ask for a stream; gives its frames, the last one of which must be [DONE]."""

    def ask(**body: Any) -> list[Any]:
        import json

        response = client.post("/v1/completions", json={"stream": True, **body})
        assert response.status_code == 200, response.text
        *frames, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]

    return ask
