"""Replicas whose behavior a test sets, and which keep the requests that they get."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Received(NamedTuple):
    """A request as a replica got it."""

    path: str
    headers: dict[str, str]
    body: bytes


class Replica(ThreadingHTTPServer):
    """An HTTP server on an address of its own; `behave` is what it does with a request.

    `answer`: JSON with its address. `hold`: nothing, until the client is gone. `drop`: closes the connection. `refuse`:
    503. `stream`: an event for each permission of the test. `cut`: one event, then closes.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int) -> None:
        super().__init__((address, port), _Handler)
        self.name = address
        self.behave = "answer"
        self.is_ready = True
        self.ready_after = 0.0  # seconds
        self.received: list[Received] = []
        self.permits = threading.Semaphore(0)
        self.left = threading.Event()  # a client has gone before its answer
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Replica

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/readyz":
            time.sleep(self.server.ready_after)
            self._send(200 if self.server.is_ready else 503)
        else:
            self._note(b"")
            self._send(200)

    def do_POST(self) -> None:
        self._note(self._body())
        behave = self.server.behave
        if behave == "answer":
            self._send(200)
        elif behave == "refuse":
            self._send(503)
        elif behave == "drop":
            self.close_connection = True
        elif behave == "hold":
            with contextlib.suppress(ConnectionResetError):
                self.connection.recv(1)
            self.server.left.set()
            self.close_connection = True
        else:
            self._stream(cut=behave == "cut")

    def _note(self, body: bytes) -> None:
        self.server.received.append(Received(self.path, dict(self.headers.items()), body))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int) -> None:
        body = json.dumps({"replica": self.server.name}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, *, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for number in range(1 if cut else 5):
                if not cut:
                    self.server.permits.acquire(timeout=20)
                event = f"data: {number}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            if not cut:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.left.set()
