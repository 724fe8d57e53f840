"""API keys, from the environment and from a file that may change while the service runs, and requests without one."""

import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import structlog
from starlette.types import Scope

from shared.http.errors import ApiError
from shared.http.settings import ServiceSettings, SettingsError, listed

_log = structlog.get_logger("ownlm.keys")

_CHECK_SECONDS = 1.0
_COMMENT = re.compile(r"(^|\s)#.*")  # a key itself may contain #


class ApiKeys:
    """The valid API keys; the file is read again within a second of a change.

    Only SHA-256 digests of the keys are kept, and compared in constant time.

    Args:
        keys: Keys that do not change.
        file: One key per line; ` #` starts a comment.

    Raises:
        SettingsError: The file cannot be read or has no key, or a line is not a key. Keys never occur in the message.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._fixed = [_digest(_checked(key, "OWNLM_API_KEYS").encode()) for key in keys]
        self._file = file
        self._version = _version(file) if file else None
        self._digests = self._fixed + (_read(file) if file else [])
        self._check_at = time.monotonic() + _CHECK_SECONDS

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> "ApiKeys | None":
        """The keys of the settings; None if the settings require no key."""
        if settings.api_keys is None and settings.api_keys_file is None:
            return None
        keys = listed(settings.api_keys.get_secret_value()) if settings.api_keys else []
        if settings.api_keys is not None and not keys:
            raise SettingsError("OWNLM_API_KEYS contains no key: unset it, or separate keys by commas")
        return cls(keys, settings.api_keys_file)

    def check(
        self, scope: Scope, headers: Mapping[bytes, bytes], *, is_public: Callable[[str], bool]
    ) -> ApiError | None:
        """Refuse a request without `Authorization: Bearer KEY` and one of the keys; public paths need none."""
        if is_public(scope["path"]):
            return None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            message = "an API key is required: send the header 'Authorization: Bearer KEY'"
            return _unauthorized(message, 'Bearer realm="ownlm"', code="missing_api_key")
        if not self.accepts(key.strip()):
            challenge = 'Bearer realm="ownlm", error="invalid_token"'
            return _unauthorized("unknown API key", challenge, code="invalid_api_key")
        return None

    def accepts(self, key: bytes) -> bool:
        """Whether this key is valid."""
        if self._file is not None and time.monotonic() >= self._check_at:
            self._reload(self._file)
        digest = _digest(key)
        is_valid = False
        for valid in self._digests:  # always all of them
            is_valid |= hmac.compare_digest(digest, valid)
        return is_valid

    def _reload(self, file: Path) -> None:
        """Read the file if it has changed; an invalid file is logged and leaves the keys unchanged."""
        self._check_at = time.monotonic() + _CHECK_SECONDS
        before, version = self._version, _version(file)
        if version == before:
            return
        self._version = version
        is_written_in_place = before is not None and version is not None and before[0] == version[0]
        try:
            self._digests = self._fixed + _read(file, may_be_half_written=is_written_in_place)
        except SettingsError as error:
            _log.error("keeping the previous API keys", reason=str(error))
        else:
            _log.info("API keys read again", keys=len(self._digests))


def _version(file: Path) -> tuple[int, int, int, int] | None:
    """Changes when the file is written to or replaced; None if it does not exist."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(file: Path, *, may_be_half_written: bool = False) -> list[bytes]:
    """Digests of the keys in a file; if it may be half-written, a last line without a line feed is skipped."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"OWNLM_API_KEYS_FILE: cannot read {file}: {reason}") from error
    if may_be_half_written and (last_line := text.rpartition("\n")[2]):
        text = text[: -len(last_line)]
        _log.error("skipping the last line of the API keys", reason=f"no line feed ends it yet in {file}")
    entries = [(number, _COMMENT.sub("", line).strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [_digest(_checked(key, f"line {number} of {file}").encode()) for number, key in entries if key]
    if not keys:
        raise SettingsError(f"OWNLM_API_KEYS_FILE: {file} contains no key; write one key per line")
    return keys


def _checked(key: str, place: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError(f"{place}: an API key must be printable ASCII without spaces")
    return key


def _unauthorized(message: str, challenge: str, *, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"WWW-Authenticate": challenge})


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
