"""Every error has the envelope, and no body makes the server fail."""

import json
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def client(build: Any) -> TestClient:
    return TestClient(build(max_body_bytes=2**25), raise_server_exceptions=False)


def error_of(response: Any) -> Any:
    assert response.json().keys() == {"error"}
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    return response.json()["error"]


def test_what_is_not_there(client: TestClient) -> None:
    response = client.get("/nothing")
    assert response.status_code == 404
    assert error_of(response)["type"] == "not_found_error"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "/nothing" in error_of(response)["message"]


def test_the_wrong_method(client: TestClient) -> None:
    response = client.get("/echo")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert error_of(response)["message"] == "GET is not allowed for /echo, use POST"


def test_an_error_of_our_own_keeps_all_it_says(client: TestClient) -> None:
    response = client.get("/items/busy")
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert error_of(response) == {"message": "too many", "type": "rate_limit_error", "param": "name", "code": "full"}


def test_an_unexpected_error_tells_nothing_of_the_inside(client: TestClient) -> None:
    response = client.get("/items/broken")
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("body", "statuses", "named"),
    [
        (b"", {422}, "the body is missing"),
        (b"{", {422}, "cannot be read as JSON"),
        (b'{"text": "a",}', {422}, "cannot be read as JSON"),
        (b"[" * 100_000, {400, 422}, "JSON"),  # B69
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {400, 422}, "JSON"),  # B69
        (b'{"whole": ' + b"9" * 5000 + b"}", {400, 422}, "JSON"),  # B69
        (b'{"whole": ' + b"9" * 4300 + b"}", {200}, ""),
        (b'{"whole": ' + b"9" * 4301 + b"}", {422}, "cannot be read as JSON in UTF-8: number out of range"),
        (b'{"number": NaN}', {422}, "number: input should be a finite number (got NaN)"),
        (b'{"number": -Infinity}', {422}, "number: "),
        (b'{"number": 1e999}', {422}, "number: "),
        (b'{"whole": 1e2}', {422}, "whole: "),
        (b'{"whole": true}', {422}, "whole: "),
        (b'{"text": "\\ud800"}', {422}, "cannot be read as JSON"),
        (b'{"\\ud800": 1}', {422}, "cannot be read as JSON"),
        (b'{"text": "\xff"}', {400, 422}, "UTF-8"),
        ('{"text": "a"}'.encode("utf-16"), {422}, "cannot be read as JSON in UTF-8"),  # B68
        (b"null", {422}, "body"),
        (b'"text"', {422}, "body"),
    ],
)
def test_hostile_json_is_refused_and_never_a_500(
    client: TestClient, body: bytes, statuses: set[int], named: str
) -> None:
    response = client.post("/echo", content=body, headers=JSON)
    assert response.status_code in statuses, response.text[:300]
    if response.status_code != 200:
        assert named in error_of(response)["message"]
        assert len(error_of(response)["message"]) < 500


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("application/problem+json", 200),
        (None, 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("nonsense", 415),
    ],
)
def test_content_types(client: TestClient, content_type: str | None, status: int) -> None:  # B68
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = client.post("/echo", content=b'{"text": "a"}', headers=headers)
    assert response.status_code == status
    if status == 415:
        assert "Content-Type: application/json" in error_of(response)["message"]


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("br, gzip", 415), ("Identity", 200), ("", 200)])
def test_a_compressed_body_is_refused_by_its_header(client: TestClient, coding: str, status: int) -> None:
    response = client.post("/echo", content=b'{"text": "a"}', headers={**JSON, "Content-Encoding": coding})
    assert response.status_code == status
    if status == 415:
        assert f'without Content-Encoding (got "{coding}")' in error_of(response)["message"]
        assert response.headers["accept-encoding"] == "identity"


def test_many_faults_are_told_shortly(client: TestClient) -> None:
    body = {f"field{index}": "x" * 10_000 for index in range(100)}
    message = error_of(client.post("/echo", content=json.dumps(body), headers=JSON))["message"]
    assert message.count("unknown field") == 3
    assert len(message) < 500


def test_a_giant_name_is_not_sent_back(client: TestClient) -> None:
    error = error_of(client.post("/echo", json={"x" * 1_000_000: 1}))
    assert error["message"].startswith("xxx")
    assert len(error["message"]) < 3_000
    assert len(error["param"]) < 300


def test_a_million_unknown_fields_are_refused_quickly(client: TestClient) -> None:
    body = "{" + ",".join(f'"f{index}":1' for index in range(1_000_000)) + "}"
    started = time.process_time()
    assert client.post("/echo", content=body, headers=JSON).status_code == 422
    assert time.process_time() - started < 5
