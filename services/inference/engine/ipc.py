"""Messages between the HTTP process and the engine process, and their encoding.

Each message is a pickle with its length before it. Only these two processes hold the socket, which has no name, so the
pickles can be trusted.
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import structlog

from services.inference.engine.types import CoreEvent, EngineStats, SequenceRequest
from shared.lm import ModelConfig

_log = structlog.get_logger("ownlm.engine")

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine process loads and runs the model; the first message to it. Settings of the service by their names.

    Attributes:
        model_dir: The model folder.
        device: "auto", "cpu", "cuda" or "cuda:1".
        dtype: Of the weights; "auto" is float32 on a CPU and bfloat16 on a GPU.
        kv_dtype: Of keys and values; "auto" leaves it to the device.
        threads: Cores that the model computes on; None leaves it to the runner.
        context_length: The most tokens of a sequence; None takes the model's.
        max_batch: Sequences that run at the same time.
        prefill_tokens: The most prompt tokens of a step; None takes the device's default.
        kv_cache_bytes: The most memory of the KV cache; None takes a share of the free memory.
    """

    model_dir: Path
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    max_batch: int = 32
    prefill_tokens: int | None = None
    kv_cache_bytes: int | None = None


class Submit(NamedTuple):
    """Queue the sequences of a request."""

    request_id: int
    sequences: list[SequenceRequest]


class Cancel(NamedTuple):
    """Cancel one sequence of a request; None cancels all of them."""

    request_id: int
    sequence_index: int | None


Command: TypeAlias = Submit | Cancel


class Ready(NamedTuple):
    """The model is loaded.

    Attributes:
        identity: See `model_identity`.
        device: Where it runs.
        dtype: Of its weights.
        context_length: The most tokens of a sequence.
        num_blocks: The most blocks of the KV cache.
        num_slots: Sequences that run at the same time.
        kv_dtype: Of keys and values.
        num_allocated_blocks: Blocks that memory has been taken for at the start.
    """

    identity: str
    device: str
    dtype: str
    context_length: int
    num_blocks: int
    num_slots: int
    kv_dtype: str = "float32"
    num_allocated_blocks: int = 0


def model_identity(fingerprint: str, config: ModelConfig) -> str:
    """Equal for two loads of the same model: the tokenizer's fingerprint and the model's configuration."""
    return f"{fingerprint} {config}"


class LoadFailure(NamedTuple):
    """The model cannot be loaded.

    Attributes:
        message: One sentence for people.
        transient: Whether another attempt may succeed: nothing is wrong with the model folder.
    """

    message: str
    transient: bool


class StepOutput(NamedTuple):
    """The result of one step.

    Attributes:
        events: What is new, in the order of the step.
        stats: The engine's numbers after the step.
        began_at: When the step began, by `time.perf_counter`, which all processes of a machine share.
    """

    events: list[CoreEvent]
    stats: EngineStats
    began_at: float


class ExitReason(NamedTuple):
    """Why the engine process is about to exit; the first half of the shutdown handshake.

    The second half is that the HTTP process closes the socket: see `worker.main`.
    """

    reason: str


class LogLine(NamedTuple):
    """A log line for the HTTP process to write; `level` is the name of structlog's method."""

    level: str
    event: str
    fields: dict[str, Any]


def log(line: LogLine) -> None:
    """Write a log line of the engine process."""
    getattr(_log, line.level)(line.event, **line.fields)


def encode(message: Any) -> bytes:
    """Return a message as it is sent."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class MessageReader:
    """Reassembles messages from the parts in which a socket delivers them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add received bytes; return the messages that are complete now."""
        self._buffer += data
        messages = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages


def receive(connection: socket.socket) -> Any | None:
    """Wait for one message; None if the other side has closed."""
    data = receive_encoded(connection)
    return None if data is None else decode(data)


def receive_encoded(connection: socket.socket) -> bytes | None:
    """`receive` without decoding, which takes a fraction of the memory; the length is cut off."""
    header = _receive_exactly(connection, _LENGTH.size)
    return header and _receive_exactly(connection, *_LENGTH.unpack(header))


def decode(data: bytes | memoryview) -> Any:
    """Return the message that `receive_encoded` gave."""
    return pickle.loads(data)  # noqa: S301 - from our own process


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)
