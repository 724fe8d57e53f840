from pathlib import Path

import pytest

from shared.http import ServiceSettings, SettingsError, load_settings


class Settings(ServiceSettings):
    port: int = 1234


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_MODEL_DIR", "models/demo")


def test_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_PORT", "80")
    settings = load_settings(Settings)
    assert (settings.model_dir, settings.port, settings.served_name) == (Path("models/demo"), 80, "demo")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "OWNLM_LOG_LEVEL",
            "loud",
            "OWNLM_LOG_LEVEL: input should be 'debug', 'info', 'warning' or 'error', got \"loud\"",
        ),
        ("OWNLM_MAX_BODY_BYTES", "8 cups", 'got "8 cups" (The largest request body, such as 8MiB)'),
        ("OWNLM_MAX_BODY_BYTES", "0", "OWNLM_MAX_BODY_BYTES: input should be greater than or equal to 1, got"),
        (
            "OWNLM_MAX_BYTES_IN_FLIGHT",
            "4MiB",
            "OWNLM_MAX_BYTES_IN_FLIGHT is 4,194,304 bytes, less than one body of OWNLM_MAX_BODY_BYTES, 8,388,608 bytes",
        ),
        ("OWNLM_ALLOWED_HOSTS", "a.example:443", 'OWNLM_ALLOWED_HOSTS: "a.example:443" is not a host name'),
        (
            "OWNLM_ALLOWED_HOSTS",
            "a.example,https://b.example",
            '"https://b.example" is not a host name as clients send',
        ),
        ("OWNLM_ALLOWED_HOSTS", "a.example/", '"a.example/" is not a host name'),
        ("OWNLM_ALLOWED_HOSTS", "*.example", '"*.example" is not a host name'),
        ("OWNLM_ALLOWED_HOSTS", ".example", '".example" is not a host name'),
        ("OWNLM_ALLOWED_HOSTS", "a.example b.example", '"a.example b.example" is not a host name'),
        ("OWNLM_ALLOWED_HOSTS", "b\u00fccher.example", "is not a host name"),
        ("OWNLM_ALLOWED_HOSTS", "[::1]:80", '"[::1]:80" is not a host name'),
        ("OWNLM_SHUTDOWN_TIMEOUT", "nan", "OWNLM_SHUTDOWN_TIMEOUT: "),
        ("OWNLM_SHUTDOWN_TIMEOUT", "-1", "OWNLM_SHUTDOWN_TIMEOUT: "),
    ],
)
def test_a_bad_value_is_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_ALLOWED_HOSTS", " Api.example , localhost,127.0.0.1,[::1],my_service,xn--bcher-kva.de")
    hosts = {"api.example", "localhost", "127.0.0.1", "[::1]", "my_service", "xn--bcher-kva.de"}
    assert load_settings(Settings).hosts == hosts
    monkeypatch.setenv("OWNLM_ALLOWED_HOSTS", "a.example, *")
    assert load_settings(Settings).hosts is None


@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_or_empty_value_is_named(monkeypatch: pytest.MonkeyPatch, empty: bool) -> None:
    if empty:
        monkeypatch.setenv("OWNLM_MODEL_DIR", "")
    else:
        monkeypatch.delenv("OWNLM_MODEL_DIR")
    with pytest.raises(SettingsError, match=r"OWNLM_MODEL_DIR is not set \(The model folder to serve\)"):
        load_settings(Settings)
