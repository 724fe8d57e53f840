"""The server of `watch`: what it answers, to whom, and how it ends."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.trainer.report.test_page import make_run
from trainer.errors import TrainerError
from trainer.runs.metrics import MetricsFile
from trainer.watch.server import address_of, bind

Serve = Callable[..., str]


def get(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(url + path, headers=headers, timeout=60, trust_env=False)


@contextmanager
def events(url: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The messages of the stream."""
    with httpx.stream("GET", url + "/events", timeout=60, trust_env=False) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def test_the_page_and_its_files_are_sent_with_their_policy(tmp_path: Path, watch: Serve) -> None:
    url = watch(tmp_path / "later")
    for path, kind in {"/": "text/html", "/assets/runs.js": "text/javascript", "/assets/base.css": "text/css"}.items():
        response = get(url, path)
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith(kind)
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/assets/nothing.js", "/nothing"):
        assert (get(url, path).status_code, get(url, path).headers["X-Content-Type-Options"]) == (404, "nosniff")
    refused = [httpx.post(url, trust_env=False), get(url, "/", Host="evil.example"), get(url, "/", Range="bytes=x")]
    assert all("default-src 'self'" in response.headers["Content-Security-Policy"] for response in refused)
    assert get(url, "/assets/__init__.py").status_code == 404
    assert get(url, "/assets/..%2f__init__.py").status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("evil.example", 421), ("evil.example:8002", 421), ("127.0.0.1.evil.example", 421), (".", 421)),
        *(("localhost", 200), ("LOCALHOST:8002", 200), ("127.0.0.1:1", 200), ("[::1]:8002", 200), ("10.0.0.7", 200)),
        (socket.gethostname(), 200),
    ],
)
def test_only_names_of_this_machine_are_answered(tmp_path: Path, host: str, status: int, server_url: str) -> None:
    """Against DNS rebinding: another name may have been made to lead here."""
    for path in ("/", "/assets/runs.js"):
        assert get(server_url, path, Host=host).status_code == status
    if status == 421:
        assert get(server_url, "/events", Host=host).status_code == 421


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"]])
def test_no_name_and_two_names_are_refused(hosts: list[str], server_url: str) -> None:
    place = urlsplit(server_url)
    lines = ["GET / HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close"]
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(100).startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for several requests."""
    listener = bind("127.0.0.1", 0)
    from trainer.watch.runs import WatchedRuns
    from trainer.watch.server import WatchServer

    server = WatchServer(WatchedRuns([tmp_path_factory.mktemp("runs")]))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield address_of(listener)
    server.stop()
    thread.join(60)


def test_every_page_gets_all_and_then_what_is_new(tmp_path: Path, watch: Serve) -> None:
    folder = make_run(tmp_path / "run", end=2.0, finished=False)
    url = watch(folder)
    with events(url) as first, events(url) as second:
        for stream in (first, second):
            whole = next(stream)
            assert whole["isWhole"]
            assert len(whole["points"]["0"]["loss"]["steps"]) == 40
        MetricsFile(folder / "metrics.jsonl").write(step=41, tokens=1, seconds=90.0, loss=1.0)
        for stream in (first, second):
            assert next(stream)["points"]["0"]["loss"] == {"from": 40, "steps": [41], "values": [1]}


def test_the_head_of_the_stream_ends(server_url: str) -> None:
    response = httpx.head(server_url + "/events", timeout=60, trust_env=False)
    assert (response.status_code, response.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")


def test_little_is_imported() -> None:
    """Neither a server by other commands, nor torch or matplotlib by this one."""
    code = "import sys, trainer.{}; print(*({{'torch', 'matplotlib', 'starlette', 'uvicorn'}} & {{*sys.modules}}))"
    loaded = []
    for module in ("cli", "watch.server"):
        command = [sys.executable, "-c", code.format(module)]
        loaded.append({*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()})
    assert loaded == [set(), {"starlette", "uvicorn"}]


def test_a_port_that_is_taken_is_named() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(TrainerError, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            bind("127.0.0.1", port)
    with pytest.raises(TrainerError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(("options", "text"), [(("--port", "70000"), "--port must be"), ((), "is not a folder")])
def test_wrong_usage_is_refused(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "trainer", "watch", str(tmp_path / "file"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stderr) == (2, True)
