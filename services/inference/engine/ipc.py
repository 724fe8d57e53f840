"""What the HTTP process and the model's process tell each other, and how it travels.

Each message is a pickle with its length before it. Both ends are ours, and the socket between them has no name: nobody
else can write to it.
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import structlog

from services.inference.engine.types import CoreEvent, EngineStats, RowRequest
from shared.lm import ModelConfig

_log = structlog.get_logger("ownlm.engine")

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the model's process is started with, its first message.

    Attributes:
        model_dir: The model folder.
        device: "auto", "cpu", "cuda" or "cuda:1".
        dtype: Of weights and cache; "auto" is float32 on a CPU and bfloat16 on a GPU.
        threads: Cores that the model computes on; None leaves it to the runner.
        context_length: The most tokens of a row; None takes the model's.
        max_batch: Rows that run at the same time.
        prefill_tokens: The most prompt tokens of a step; None: what suits the device.
        kv_cache_bytes: Memory of the KV cache; None takes a share of what is free.
    """

    model_dir: Path
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    max_batch: int = 32
    prefill_tokens: int | None = None
    kv_cache_bytes: int | None = None


class Submit(NamedTuple):
    """Queue the rows of a job."""

    job: int
    rows: list[RowRequest]


class Cancel(NamedTuple):
    """Drop one row of a job, or all that are left of it."""

    job: int
    row: int | None


Command: TypeAlias = Submit | Cancel


class Hello(NamedTuple):
    """The model is loaded.

    Attributes:
        identity: Tells whether this is the model that was served before: the tokenizer's fingerprint and the sizes.
        device: Where it runs.
        dtype: Of its weights.
        context_length: The most tokens of a row.
        num_blocks: Blocks of the KV cache.
        max_rows: Rows that run at the same time.
    """

    identity: str
    device: str
    dtype: str
    context_length: int
    num_blocks: int
    max_rows: int


def identity_of(fingerprint: str, config: ModelConfig) -> str:
    """What `Hello.identity` is for a tokenizer's fingerprint and a model's configuration."""
    return f"{fingerprint} {config}"


class LoadFault(NamedTuple):
    """The model cannot be loaded.

    Attributes:
        message: One sentence for people.
        may_pass: Whether it may be loaded a while later: nothing is wrong with the model folder.
    """

    message: str
    may_pass: bool


class Step(NamedTuple):
    """What one step gave.

    Attributes:
        events: Pairs of a job and an event.
        stats: What the engine holds after it.
        began_at: When it began, by `time.perf_counter`, which all processes of a machine share.
    """

    events: list[tuple[int, CoreEvent]]
    stats: EngineStats
    began_at: float


class LastWords(NamedTuple):
    """Why the process is about to end by itself."""

    reason: str


class LogLine(NamedTuple):
    """Something to log, by the process that knows where and how; `level` is the name of structlog's method."""

    level: str
    event: str
    fields: dict[str, Any]


def log(line: LogLine) -> None:
    """Log what the other process had to say."""
    getattr(_log, line.level)(line.event, **line.fields)


def encode(message: Any) -> bytes:
    """Return a message as it travels."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class MessageReader:
    """Puts messages together again from the pieces that a socket gives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Take what came; return the messages that are complete with it."""
        self._buffer += data
        messages = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[start + _LENGTH.size : end]))  # noqa: S301 - from ourselves
            start = end
        del self._buffer[:start]
        return messages


def receive(connection: socket.socket) -> Any | None:
    """Wait for one message; None where the other side has closed."""
    data = receive_encoded(connection)
    return None if data is None else decode(data)


def receive_encoded(connection: socket.socket) -> bytes | None:
    """`receive`, and leave the message as it travels, without its length: that takes a fraction of the memory."""
    header = _receive_exactly(connection, _LENGTH.size)
    return header and _receive_exactly(connection, *_LENGTH.unpack(header))


def decode(data: bytes) -> Any:
    """Return the message that `receive_encoded` gave."""
    return pickle.loads(data)  # noqa: S301 - from ourselves


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)
