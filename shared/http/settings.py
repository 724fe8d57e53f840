"""Settings from the environment: what both services share, and how a bad value is told."""

import os
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import ByteSize, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.http.errors import shorten
from shared.http.middleware.refusals import LOCAL_HOSTS

_ENV_PREFIX = "OWNLM_"
LOCAL_ADDRESSES = frozenset({"127.0.0.1", "::1", "localhost"})
_NEVER_EMPTY = frozenset({"OWNLM_API_KEYS", "OWNLM_API_KEYS_FILE"})


class SettingsError(Exception):
    """A setting is missing or wrong. The message is one sentence for people."""


class ServiceSettings(BaseSettings):
    """Read from variables named `OWNLM_` and the field's name in capitals, as in `OWNLM_MODEL_DIR`."""

    # An empty variable is an absent one, but for _NEVER_EMPTY: compose files write `OWNLM_PORT=${OWNLM_PORT}`.
    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX, env_ignore_empty=True, frozen=True, protected_namespaces=()
    )

    model_dir: Path = Field(description="The model folder to serve")
    model_name: str | None = Field(None, description="The model's name in answers; default: the folder's name")
    host: str = Field("127.0.0.1", description="The address to listen on; 0.0.0.0 for all")
    port: int = Field(ge=0, le=65535, description="The port to listen on; 0 for a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What to log at least")
    log_format: Literal["console", "json"] = Field("console", description="For people or for programs")
    log_prompts: bool = Field(False, description="Log prompts and answers, too")
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=1, description="The largest request body")
    max_bytes_in_flight: ByteSize | None = Field(
        None,
        description="What large request bodies and answers may take in memory, all together, as in 64MiB; beyond it "
        "requests are refused with 503; default: 8 times OWNLM_MAX_BODY_BYTES",
    )
    allowed_hosts: str | None = Field(
        None,
        description="The host names by which clients may call, without ports, separated by commas; * for all; default: "
        "localhost, 127.0.0.1 and [::1] when listening on one of these, else all",
    )
    client_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds that a client has to send a request, or to take some of its answer",
    )
    api_keys: SecretStr | None = Field(
        None, description="Keys that clients must send, separated by commas; default: everybody may call"
    )
    api_keys_file: Path | None = Field(None, description="A file of such keys, one a line; read again when it changes")
    cors_origins: str | None = Field(
        None, description="Origins whose web pages may call, separated by commas; * for all; default: none"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Where OpenTelemetry traces go, as in http://collector:4318; OTEL_ variables work as well",
    )
    cpu_threads: int = Field(2, ge=1, description="How many requests may tokenize at the same time")
    shutdown_timeout: float = Field(
        10.0, ge=0, le=3600, description="Seconds that running requests get to finish after SIGTERM"
    )

    @property
    def processes(self) -> int:
        """How many worker processes share the port."""
        return 1

    @model_validator(mode="after")
    def _room_for_a_body(self) -> Self:
        if self.memory_in_flight < self.max_body_bytes:
            raise ValueError(
                f"OWNLM_MAX_BYTES_IN_FLIGHT={self.max_bytes_in_flight} has no room for a body of "
                f"OWNLM_MAX_BODY_BYTES={self.max_body_bytes}"
            )
        return self

    @property
    def memory_in_flight(self) -> int:
        """Bytes that large bodies and answers may take, all together."""
        return self.max_bytes_in_flight or 8 * self.max_body_bytes

    @property
    def hosts(self) -> frozenset[str] | None:
        """The host names by which clients may call; None for all."""
        if self.allowed_hosts is None:
            return LOCAL_HOSTS if self.host in LOCAL_ADDRESSES else None
        names = self.allowed_hosts.lower().replace(",", " ").split()
        return None if "*" in names else frozenset(names)

    @cached_property
    def served_name(self) -> str:
        """The model's name in answers, found once: a path is resolved by a dozen system calls."""
        return self.model_name or self.model_dir.resolve().name


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(settings_class: type[SettingsT]) -> SettingsT:
    """Read the settings from the environment.

    Raises:
        SettingsError: naming the variable, what is wrong with it and the value got.
    """
    for name, value in os.environ.items():
        if name.upper() in _NEVER_EMPTY and not value.strip():
            # As where a secret was not found: it would open the service to everybody.
            raise SettingsError(f"{name} is set but empty: give it a value, or unset it to let everybody call")
    try:
        return settings_class()
    except ValidationError as error:
        raise SettingsError("; ".join(_describe(settings_class, fault) for fault in error.errors())) from error


def _describe(settings_class: type[ServiceSettings], fault: object) -> str:
    assert isinstance(fault, dict)
    if not fault["loc"]:
        return str(fault["msg"]).removeprefix("Value error, ")
    name = str(fault["loc"][0])
    field = settings_class.model_fields.get(name)
    purpose = f" ({field.description})" if field and field.description else ""
    if fault["type"] == "missing":
        return f"{_ENV_PREFIX}{name.upper()} is not set{purpose}"
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"{_ENV_PREFIX}{name.upper()}: {message}, got {shorten(fault['input'])}{purpose}"
