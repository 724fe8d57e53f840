"""Browsers' pages: none may call unless its origin is named."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.http import SettingsError

PAGE = "https://app.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def test_off_by_default(build: Any) -> None:
    client = TestClient(build())
    assert "access-control-allow-origin" not in client.get("/livez", headers={"Origin": PAGE}).headers
    assert client.options("/echo", headers=PREFLIGHT).status_code == 405


def test_named_origins_may_call_also_where_keys_are_needed(build: Any) -> None:
    client = TestClient(build(cors_origins=f"{PAGE},http://localhost:3000", api_keys="k"))
    preflight = client.options("/echo", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    refused = client.post("/echo", headers={"Origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
    assert "X-Request-ID" in refused.headers["access-control-expose-headers"]
    other = client.get("/livez", headers={"Origin": "https://evil.example.com"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["app.example.com", f"{PAGE}/", f"{PAGE}/page", "https://"])
def test_what_no_browser_sends_is_refused(build: Any, origin: str) -> None:
    with pytest.raises(SettingsError, match="is not an origin"):
        build(cors_origins=origin)
