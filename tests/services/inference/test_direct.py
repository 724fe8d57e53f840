"""What is answered before the framework's routing is what the route would have answered."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inference.app import create_app
from services.inference.settings import InferenceSettings

PATHS = ["/generate", "/v1/completions"]
DIRECT = {"Content-Type": "application/json"}
ROUTED = {"Content-Type": "application/json; charset=utf-8"}
NEW = re.compile(rb'"(id|created)":("[^"]*"|\d+)')
"""Of each answer its own."""

VALUES = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([None, True, 0.5, 2**63, 10**400, float("nan"), "a", "", "\ud800", [], [1], ["a"], {}, {"7": 3}]),
)
FIELDS = st.sampled_from(
    [
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "stop", "stop_token_ids", "ignore_eos", "n", "logprobs", "echo", "stream", "min_tokens"),
        *("prompt_logprobs", "model", "suffix", "best_of", "stream_options", "prompt", "max_tokens", "x"),
    ]
)


@pytest.fixture(scope="module")
def app(model_dir: Path) -> FastAPI:
    return create_app(InferenceSettings(model_dir=model_dir, threads=1))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


def same(client: TestClient, path: str, body: bytes) -> Any:
    direct = client.post(path, content=body, headers=DIRECT)
    routed = client.post(path, content=body, headers=ROUTED)
    assert direct.status_code == routed.status_code
    assert direct.headers["content-type"] == routed.headers["content-type"]
    assert NEW.sub(b"", direct.content) == NEW.sub(b"", routed.content)
    return direct


@settings(max_examples=60, deadline=None)
@given(path=st.sampled_from(PATHS), options=st.dictionaries(FIELDS, VALUES, max_size=2))
def test_both_ways_give_the_same(client: TestClient, path: str, options: dict[str, Any]) -> None:
    body = {"prompt": "Once", "max_tokens": 2, "seed": 1, **options}
    assert same(client, path, json.dumps(body).encode()).status_code < 500


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_the_same(client: TestClient, path: str, stream: bool) -> None:
    body = {"prompt": "Once upon", "max_tokens": 9, "seed": 1, "n": 2, "logprobs": 2, "stream": stream}
    assert same(client, path, json.dumps(body).encode()).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"{}", b'{"prompt": "a"} x', b'{"prompt": NaN}', b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}', b'\xef\xbb\xbf{"prompt": "a", "seed": 1}',
        '{"prompt": "é", "seed": 1}'.encode("utf-16"), b"[" * 2000,
        b'{"prompt": ' + b"[" * 2000, b'{"prompt": [' + b"9" * 3000 + b"]}", b'{"prompt": [-1]}',
        b'{"prompt": "a", "seed": 1, "max_tokens": 1, "prompt": "b"}',
    ],
)  # fmt: skip
def test_unusual_bodies_get_the_same_answer(client: TestClient, path: str, body: bytes) -> None:
    assert same(client, path, body).status_code < 500


def test_it_is_measured_as_its_route(client: TestClient) -> None:
    for path in PATHS:
        assert client.post(path, json={"prompt": "a", "max_tokens": 1}).headers["x-request-id"]
        assert f'route="{path}",status="200"' in client.get("/metrics").text


def test_small_requests_never_see_the_router(client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.router, "routes", [])
    body = b'{"prompt": "a", "max_tokens": 1}'
    for path in PATHS:
        assert client.post(path, content=body, headers=DIRECT).status_code == 200
        assert client.post(path, content=body, headers=ROUTED).status_code == 404
