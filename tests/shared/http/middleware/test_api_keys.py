"""Who is let in, and how keys are changed while the service runs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from structlog.testing import capture_logs

from shared.http import ServiceSettings, SettingsError
from shared.http.middleware import api_keys as module
from shared.http.middleware.api_keys import ApiKeys
from shared.http.settings import load_settings

OLD = "old-key-0123456789"
NEW = "new-key#0123456789"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock of the file's watcher forward."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


@pytest.mark.parametrize(
    "path",
    ["/items/a", "/metrics", "/nothing", "/livez/", "http://testserver//livez", "/docs/", "/assets", "/assets/a/b"],
)
def test_everything_but_health_checks_and_pages_needs_a_key(build: Any, path: str) -> None:
    with TestClient(build(api_keys=f"{OLD}, another")) as client:
        for health in ("/livez", "/readyz"):
            assert client.get(health).status_code in (200, 503)
        response = client.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="ownlm"'
        assert response.json()["error"] == {
            "message": "an API key is required: send the header 'Authorization: Bearer KEY'",
            "type": "authentication_error",
            "param": None,
            "code": "missing_api_key",
        }
        assert client.get(path, headers=bearer("another")).status_code != 401


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("Bearer wrong", "invalid_api_key"),
        (f"Bearer {OLD}x", "invalid_api_key"),
        (f"Bearer {OLD[:-1]}", "invalid_api_key"),
        ("Bearer ", "invalid_api_key"),
        ("Bearer \xff\xfe", "invalid_api_key"),
        (f"Basic {OLD}", "missing_api_key"),
        (OLD, "missing_api_key"),
        ("", "missing_api_key"),
    ],
)
def test_wrong_keys(build: Any, header: str, code: str) -> None:
    with TestClient(build(api_keys=OLD)) as client:
        response = client.get("/metrics", headers={"Authorization": header.encode("latin-1")})
    assert (response.status_code, response.json()["error"]["code"]) == (401, code)
    assert response.headers["x-request-id"]


def test_the_scheme_is_in_any_case(build: Any) -> None:
    with TestClient(build(api_keys=OLD)) as client:
        assert client.get("/metrics", headers={"authorization": f"bEARER  {OLD}"}).status_code == 200


def test_a_refused_body_is_not_read_and_no_key_is_logged(build: Any) -> None:
    with TestClient(build(api_keys=OLD)) as client, capture_logs() as logs:
        client.post("/echo", content=b"x", headers=bearer("my-wrong-key"))
        client.post("/echo", json={"text": "a"}, headers=bearer(OLD))
        page = client.get("/metrics", headers=bearer(OLD)).text
    assert [entry["status"] for entry in logs if entry["event"] == "request"] == [401, 200, 200]
    assert logs[0]["error"] == "invalid_api_key"
    assert OLD not in str(logs)
    assert "my-wrong-key" not in str(logs)
    assert 'ownlm_refused_requests_total{reason="invalid_api_key"} 1.0' in page


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/assets/base.css", "/assets/none.css"])
def test_pages_need_a_key_only_where_they_are_off(build: Any, path: str) -> None:
    with TestClient(build(api_keys=OLD)) as client:
        assert client.get(path).status_code == (404 if "none" in path else 200)
    with TestClient(build(api_keys=OLD, pages=False)) as client:
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer(OLD)).status_code == (200 if path == "/openapi.json" else 404)


def test_the_document_says_what_needs_a_key(build: Any) -> None:
    with TestClient(build(api_keys=OLD)) as client:
        document = client.get("/openapi.json", headers=bearer(OLD)).json()
    assert document["paths"]["/echo"]["post"]["security"] == [{"ApiKey": []}]
    assert "401" in document["paths"]["/echo"]["post"]["responses"]
    assert "security" not in document["paths"]["/livez"]["get"]
    with TestClient(build()) as client:
        assert "401" not in str(client.get("/openapi.json").json())


def test_keys_in_a_file_change_while_the_service_runs(tmp_path: Path, clock: Callable[[float], None]) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\ufeff# who has which\n\n{OLD}  # the laptop\n")
    keys = ApiKeys(("fixed",), file)
    assert keys.accepts(OLD.encode())
    assert not keys.accepts(NEW.encode())
    assert not keys.accepts(b"")

    replacement = tmp_path / "keys.new"
    replacement.write_text(f"{NEW}\n")
    replacement.replace(file)
    assert keys.accepts(OLD.encode()), "the file is looked at once a second"
    clock(1.1)
    assert keys.accepts(NEW.encode())
    assert not keys.accepts(OLD.encode())
    assert keys.accepts(b"fixed")


@pytest.mark.parametrize("breakage", ["empty", "gone", "spaces", "binary"])
def test_a_broken_file_keeps_the_old_keys_and_says_so(
    tmp_path: Path, clock: Callable[[float], None], breakage: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = ApiKeys((), file)
    if breakage == "gone":
        file.unlink()
    else:
        file.write_bytes({"empty": b"# none\n", "spaces": b"two keys\n", "binary": b"\xff\xfe\x00"}[breakage])
    clock(1.1)
    with capture_logs() as logs:
        assert keys.accepts(OLD.encode())
        clock(1.1)
        assert keys.accepts(OLD.encode())
    [line] = logs
    assert line["log_level"] == "error"
    assert str(file) in line["reason"]
    assert "two" not in line["reason"]

    file.write_text(f"{NEW}\n")
    clock(1.1)
    assert keys.accepts(NEW.encode())


@pytest.mark.case("D23")
def test_a_half_written_line_is_no_key(tmp_path: Path, clock: Callable[[float], None]) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{OLD}\n")
    keys = ApiKeys((), file)
    with file.open("w") as written:
        for part in (f"{NEW}\nsecond-", "ke", "y"):
            written.write(part)
            written.flush()
            clock(1.1)
            with capture_logs() as logs:
                assert keys.accepts(NEW.encode()), "a whole line counts at once"
            assert not keys.accepts(OLD.encode())
            assert not any(keys.accepts(b"second-key"[:length]) for length in range(11))
            assert [line["event"] for line in logs if line["log_level"] == "error"] == [
                "skipping the last line of the API keys"
            ]
            assert "second" not in str(logs)
        written.write("\n")
    clock(1.1)
    assert keys.accepts(b"second-key")


@pytest.mark.case("D23")
def test_a_file_that_is_not_written_in_place_needs_no_last_line_feed(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    """Secrets of Kubernetes and Docker are often made without one, and replaced in one step."""
    file, replacement = tmp_path / "keys", tmp_path / "keys.new"
    file.write_text(OLD)
    keys = ApiKeys((), file)
    assert keys.accepts(OLD.encode())
    replacement.write_text(NEW)
    replacement.replace(file)
    clock(1.1)
    assert keys.accepts(NEW.encode())


def test_the_same_length_and_time_are_still_a_change(tmp_path: Path, clock: Callable[[float], None]) -> None:
    file = tmp_path / "keys"
    file.write_text("a" * 20)
    keys = ApiKeys((), file)
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    replacement = tmp_path / "keys.new"
    replacement.write_text("b" * 20)
    os.utime(replacement, ns=times)
    replacement.replace(file)
    clock(1.1)
    assert keys.accepts(b"b" * 20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_keys": " , "}, "OWNLM_API_KEYS contains no key"),
        ({"api_keys": "caf\u00e9"}, "OWNLM_API_KEYS: an API key must be printable ASCII"),
        ({"api_keys": "one,caf two"}, "OWNLM_API_KEYS: an API key must be printable ASCII without spaces"),
        ({"api_keys_file": Path("/nothing/there")}, "cannot read /nothing/there: No such file or directory"),
        ({"api_keys_file": Path("/dev/null")}, "/dev/null contains no key"),
    ],
)
def test_keys_that_cannot_be_used_end_the_start(build: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(**settings)
    assert message in str(caught.value)
    assert "caf" not in str(caught.value)


@pytest.mark.case("D23")
@pytest.mark.parametrize("name", ["OWNLM_API_KEYS", "OWNLM_API_KEYS_FILE", "ownlm_api_keys"])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_does_not_open_the_service(
    name: str, empty: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `OWNLM_API_KEYS=${OWNLM_API_KEYS}` gives where the second is not set."""
    monkeypatch.setenv("OWNLM_MODEL_DIR", str(tmp_path))
    monkeypatch.setenv("OWNLM_PORT", "0")
    load_settings(ServiceSettings)
    monkeypatch.setenv(name, empty)
    with pytest.raises(SettingsError, match=f"{name} is set but empty"):
        load_settings(ServiceSettings)


@pytest.mark.case("D23")
def test_a_folder_in_place_of_the_file_does_not_open_the_service(build: Any, tmp_path: Path) -> None:
    """What Docker mounts where a file to mount does not exist."""
    with pytest.raises(SettingsError, match="Is a directory"):
        build(api_keys_file=tmp_path)


def test_settings_do_not_show_keys() -> None:
    assert "sesame" not in repr(ServiceSettings(model_dir=Path("m"), port=0, api_keys=SecretStr("sesame")))
