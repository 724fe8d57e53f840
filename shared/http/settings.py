"""Settings from the environment: those that both services share, and messages for invalid values."""

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.http.errors import short_json

_ENV_PREFIX = "OWNLM_"
LOCAL_ADDRESSES = frozenset({"127.0.0.1", "::1", "localhost"})
_LOCAL_HOSTS = frozenset({"127.0.0.1", "[::1]", "localhost"})  # as the Host header spells them
_NEVER_EMPTY = frozenset({"OWNLM_API_KEYS", "OWNLM_API_KEYS_FILE"})
_HOST_NAME = re.compile(r"\*|\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9_-])?", re.IGNORECASE)


class SettingsError(Exception):
    """A setting is missing or invalid. The message is one readable sentence."""


def listed(value: str) -> list[str]:
    """The entries of a list that is separated by commas."""
    return [entry for part in value.split(",") if (entry := part.strip())]


class ServiceSettings(BaseSettings):
    """Read from variables named `OWNLM_` and the field's name in capitals, as in `OWNLM_MODEL_DIR`."""

    # An empty variable counts as unset, except for _NEVER_EMPTY: compose files write `OWNLM_PORT=${OWNLM_PORT}`.
    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX, env_ignore_empty=True, frozen=True, protected_namespaces=()
    )

    model_dir: Path = Field(description="The model folder to serve")
    model_name: str | None = Field(None, description="The model's name in responses; default: the folder's name")
    host: str = Field("127.0.0.1", description="The address to listen on; 0.0.0.0 for all")
    port: int = Field(ge=0, le=65535, description="The port to listen on; 0 for a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The lowest level to log")
    log_format: Literal["console", "json"] = Field("console", description="Readable lines, or JSON lines")
    log_prompts: bool = Field(False, description="Also log prompts and answers")
    max_body_bytes: ByteSize = Field(ByteSize(8 << 20), ge=1, description="The largest request body, such as 8MiB")
    max_bytes_in_flight: ByteSize | None = Field(
        None,
        description="Memory for all large request and response bodies together, such as 64MiB; requests beyond it are "
        "refused with 503; default: 8 times OWNLM_MAX_BODY_BYTES",
    )
    allowed_hosts: str | None = Field(
        None,
        description="Host names that clients may use beside IP addresses, without ports, separated by commas; * for "
        "all; default: localhost, 127.0.0.1 and [::1] when listening on one of these, else all",
    )
    client_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds for a client to send a request, and to read some of a response that waits for it",
    )
    api_keys: SecretStr | None = Field(
        None, description="API keys, one of which clients must send, separated by commas; default: no key needed"
    )
    api_keys_file: Path | None = Field(None, description="A file of API keys, one per line; read again when it changes")
    cors_origins: str | None = Field(
        None, description="Origins of web pages that may send requests, separated by commas; * for all; default: none"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Where to send OpenTelemetry traces, such as http://collector:4318; OTEL_ variables work as well",
    )
    pages: bool = Field(True, description="Serve the web pages at /, and the API's documentation at /docs")
    cpu_threads: int = Field(2, ge=1, description="Requests that may tokenize at the same time, each in a thread")
    shutdown_timeout: float = Field(
        10.0, ge=0, le=3600, description="Seconds for running requests to finish after SIGTERM"
    )

    @property
    def processes(self) -> int:
        """How many worker processes share the port."""
        return 1

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: str | None) -> str | None:
        """Refuse what no `Host` header names: it would only lock clients out."""
        for name in listed(value or ""):
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{short_json(name)} is not a host name as clients send it, such as api.example.com")
        return value

    @model_validator(mode="after")
    def _check_memory_fits_a_body(self) -> Self:
        if self.memory_in_flight < self.max_body_bytes:
            raise ValueError(
                f"OWNLM_MAX_BYTES_IN_FLIGHT is {self.memory_in_flight:,} bytes, less than one body of "
                f"OWNLM_MAX_BODY_BYTES, {self.max_body_bytes:,} bytes"
            )
        return self

    @property
    def memory_in_flight(self) -> int:
        """Bytes for all large request and response bodies together."""
        return self.max_bytes_in_flight or 8 * self.max_body_bytes

    @property
    def hosts(self) -> frozenset[str] | None:
        """The host names that clients may use; None for all."""
        if self.allowed_hosts is None:
            return _LOCAL_HOSTS if self.host in LOCAL_ADDRESSES else None
        names = listed(self.allowed_hosts.lower())
        return None if "*" in names else frozenset(names)

    @cached_property
    def served_name(self) -> str:
        """The model's name in responses; cached, since resolving a path takes a dozen system calls."""
        return self.model_name or self.model_dir.resolve().name


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(settings_class: type[SettingsT]) -> SettingsT:
    """Read the settings from the environment.

    Raises:
        SettingsError: Names the variable, what is wrong with it and its value.
    """
    for name, value in os.environ.items():
        if name.upper() in _NEVER_EMPTY and not value.strip():
            # A secret that was not found looks like this; serving without keys would open the service.
            raise SettingsError(f"{name} is set but empty: give it a value, or unset it to serve without API keys")
    try:
        return settings_class()
    except ValidationError as error:
        raise SettingsError("; ".join(_describe(settings_class, one) for one in error.errors())) from error


def _describe(settings_class: type[ServiceSettings], error: object) -> str:
    assert isinstance(error, dict)
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    field = settings_class.model_fields.get(name)
    purpose = f" ({field.description})" if field and field.description else ""
    if error["type"] == "missing":
        return f"{_ENV_PREFIX}{name.upper()} is not set{purpose}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{_ENV_PREFIX}{name.upper()}: {message}, got {short_json(error['input'])}{purpose}"
