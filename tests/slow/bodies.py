"""Send bodies that no service should read, over a socket of one's own, and see what they cost."""

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path


def send(port: int, path: str, headers: str, pieces: Iterable[bytes]) -> bytes:
    """The status line that comes back, to a client that looks for it once all is sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode())
        for piece in pieces:
            connection.sendall(piece)
        return connection.recv(65536).split(b"\r\n")[0]


def chunked(piece: bytes, total: int) -> Iterator[bytes]:
    """A body in chunks, which never ends."""
    for _ in range(total // len(piece)):
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def reset_peak(pid: int) -> None:
    """Let `peak_memory` count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_memory(pid: int) -> int:
    """The most bytes that a process had in memory, since it was reset."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
