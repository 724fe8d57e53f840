from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs


@pytest.fixture
def client(build: Any) -> TestClient:
    return TestClient(build(max_body_bytes=100), raise_server_exceptions=False)


def test_requests_are_counted_by_template_and_status(client: TestClient) -> None:
    client.get("/items/a")
    client.get("/items/busy")
    client.get("/items/broken")
    client.get("/nothing")
    client.post("/echo", content=b"x" * 101)
    text = client.get("/metrics").text
    for method, route, status in [
        ("GET", "/items/{name}", 503),
        ("GET", "/items/{name}", 429),
        ("GET", "/items/{name}", 500),
        ("GET", "unmatched", 404),
        ("POST", "/echo", 413),
    ]:
        assert f'ownlm_http_requests_total{{method="{method}",route="{route}",status="{status}"}} 1.0' in text
    assert "/items/a" not in text, "paths that clients make up are no labels"


def test_log_lines_have_the_request_id_and_never_the_content(client: TestClient) -> None:
    with capture_logs() as logs:
        response = client.post("/echo", json={"text": "my secret"}, headers={"X-Request-ID": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    [line] = [entry for entry in logs if entry["event"] == "request"]
    assert (line["id"], line["route"], line["status"]) == ("abc-1", "/echo", 200)
    assert "secret" not in str(logs)


@pytest.mark.parametrize("given", ["", "a" * 129, "a\u00e9\u0007"])
def test_request_ids_that_would_spoil_the_log_are_replaced(client: TestClient, given: str) -> None:
    response = client.get("/livez", headers={"X-Request-ID": given.encode("latin-1")})
    assert len(response.headers["x-request-id"]) == 32
