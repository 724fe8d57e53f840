"""What is answered before the framework's routing is what the route would have answered."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

DIRECT = {"Content-Type": "application/json"}
ROUTED = {"Content-Type": "application/json; charset=utf-8"}

TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["<|endoftext|>", "a fox<|e|>", "\0", "\ud800"]))
NUMBERS = st.one_of(st.integers(-2, 400), st.sampled_from([2**31, 2**63, 2**64, 10**400, True, None, 1.0, "7"]))
VALUES = st.one_of(
    TEXTS, NUMBERS, st.lists(TEXTS, max_size=6), st.lists(NUMBERS, max_size=6), st.lists(st.lists(NUMBERS), max_size=6)
)
FIELDS = st.sampled_from(
    ["text", "allowed_special", "add_special_tokens", "return_pieces", "tokens", "skip_special_tokens", "errors", "x"]
)
"""Field names of both requests, so that wrong ones are among them."""


def same(client: TestClient, path: str, body: bytes) -> Any:
    direct = client.post(path, content=body, headers=DIRECT)
    routed = client.post(path, content=body, headers=ROUTED)
    assert direct.status_code == routed.status_code
    assert direct.headers["content-type"] == routed.headers["content-type"]
    assert direct.json() == routed.json()
    return direct


@settings(max_examples=60)
@given(
    path=st.sampled_from(["/encode", "/decode"]),
    main=VALUES,
    options=st.dictionaries(FIELDS, st.one_of(VALUES, st.sampled_from(["all", "strict", "replace"])), max_size=2),
)
def test_both_ways_give_the_same(client: TestClient, path: str, main: Any, options: dict[str, Any]) -> None:

    field = "text" if path == "/encode" else "tokens"
    same(client, path, json.dumps({**options, field: main}).encode())


@pytest.mark.parametrize("path", ["/encode", "/decode"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"a"', b"{}", b'{"text": "a"} x', b'{"text": "a", "text": "b"}',
        b'{"text": NaN}', b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'\xef\xbb\xbf{"text": "a"}',
        '{"text": "é"}'.encode("utf-16"), b"[" * 2000, b'{"tokens": ' + b"[" * 2000,
        b'{"tokens": [' + b"9" * 3000 + b"]}",
        b'{"tokens": [1, 2.0]}', b'{"tokens": [-0]}', b'{"tokens": [[1], 2]}', b'{"tokens": [1, [2]]}',
        b'{"tokens": [[]]}',
        b'{"text": ["a", "b", "c", "d", "e", "f"]}', b'{"tokens": [[1],[1],[1],[1],[1],[1]]}', b'{"text": ""}',
    ],
)  # fmt: skip
def test_hostile_bodies_get_the_same_refusal(client: TestClient, path: str, body: bytes) -> None:
    assert same(client, path, body).status_code < 500


def test_other_methods_and_paths_are_the_routers(client: TestClient) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
        answer = client.request(method, "/encode")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert client.post("/encode/", json={"text": "a"}, follow_redirects=False).status_code in (307, 404)


def test_it_is_measured_as_its_route(client: TestClient) -> None:
    assert client.post("/encode", json={"text": "a fox"}).headers["x-request-id"]
    assert 'route="/encode",status="200"' in client.get("/metrics").text


def test_a_coded_body_takes_the_route(client: TestClient) -> None:
    answer = client.post("/encode", content=b'{"text": "a"}', headers={**DIRECT, "Content-Encoding": "gzip"})
    assert answer.status_code == 415
