"""What the proxy of the compose file does: HAProxy itself, with the shipped configuration, on this machine."""

import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from services.inference.settings import InferenceSettings
from shared.http.middleware.admission import check_headers
from tests.deploy.conftest import PROXY, Proxy
from tests.deploy.names import NameServer
from tests.deploy.replicas import Replica
from tests.docs.pages import DOCS
from tests.ports import free_port
from tests.services.conftest import wait_until

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # loopback has them all


class Cluster:
    """Three replicas behind a proxy."""

    def __init__(self) -> None:
        self.port = free_port()
        self.replicas = {address: Replica(address, self.port) for address in ADDRESSES}
        self.names = NameServer(ADDRESSES)
        self.proxy = Proxy(self.port, self.names)
        self.proxy.wait_up(3)
        self.client = httpx.Client(base_url=self.proxy.url, headers={"Content-Type": "application/json"}, timeout=30)

    def reset(self) -> None:
        for replica in self.replicas.values():
            replica.behave, replica.is_ready = "answer", True
            replica.received.clear()
            replica.left.clear()
        self.names.addresses = list(ADDRESSES)
        self.proxy.wait_up(3)

    def post(self, body: dict[str, Any] | bytes, path: str = "/v1/completions") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, content=content)

    def replica_of(self, body: dict[str, Any] | bytes, path: str = "/v1/completions") -> Replica:
        response = self.post(body, path)
        assert response.status_code == 200, response.text
        return self.replicas[response.json()["replica"]]

    def close(self) -> None:
        self.client.close()
        self.proxy.close()
        self.names.close()
        for replica in self.replicas.values():
            replica.close()


@pytest.fixture(scope="module")
def running(haproxy: None) -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.reset()
    return running


def test_health_checks_pass_with_any_allowed_hosts() -> None:
    """Else `OWNLM_ALLOWED_HOSTS=api.example docker compose up` has no replica."""
    [check] = re.findall(r"http-check send .* hdr Host (\S+)", (PROXY / "haproxy.cfg").read_text("utf-8"))
    host = (b"host", check.encode())
    scope = {"type": "http", "http_version": "1.1", "headers": [host]}
    assert check_headers(frozenset({"api.example"}), scope, dict([host])) is None


def test_a_proxy_waits_longer_than_a_request_may_take() -> None:
    """Before a response that is not streamed, no byte comes: HAProxy; and nginx and an ingress in the documentation."""
    deploy = (DOCS / "how-to" / "deploy.md").read_text("utf-8")
    waits = re.findall(r"timeout (?:client|server) (\d+)m", (PROXY / "haproxy.cfg").read_text("utf-8"))
    waits += re.findall(r"proxy_read_timeout (\d+)m;", deploy)
    seconds = [60 * int(minutes) for minutes in waits]
    seconds += map(int, re.findall(r'proxy-read-timeout: "(\d+)"', deploy))
    assert len(seconds) == 4
    assert min(seconds) > InferenceSettings.model_fields["request_timeout"].default


def test_prompts_that_begin_alike_go_to_one_replica(cluster: Cluster) -> None:
    beginning = "The history of the town. " * 20
    first = cluster.replica_of({"prompt": beginning + "1", "seed": 1})
    for number in range(2, 8):
        assert cluster.replica_of({"seed": number, "model": "m", "prompt": f"{beginning}{number}"}) is first
    ids = [*range(200)]
    assert cluster.replica_of({"prompt": [*ids, 1]}) is cluster.replica_of({"n": 2, "prompt": [*ids, 2]})
    assert {cluster.replica_of({"prompt": f"{number} questions"}).name for number in range(40)} == set(ADDRESSES)


@pytest.mark.parametrize(
    "opening",
    [
        [{"role": "user", "content": "Hi {"}],
        [{"role": "system", "content": "You are {brief}. " * 40}, {"role": "user", "content": 'Say "role": "user"'}],
        [{"content": "Привет", "role": "user"}],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    ],
)
def test_a_conversation_stays_with_its_replica(cluster: Cluster, opening: list[dict[str, Any]]) -> None:
    path = "/v1/chat/completions"
    first = cluster.replica_of({"messages": opening, "temperature": 1}, path)
    turns = [*opening]
    for number in range(4):
        turns += [{"role": "assistant", "content": f"{number}"}, {"role": "user", "content": "More"}]
        assert cluster.replica_of({"messages": turns, "seed": number}, path) is first


def test_conversations_are_spread(cluster: Cluster) -> None:
    """Though all have the same instructions."""
    system = {"role": "system", "content": "You are a helpful assistant. " * 40}
    bodies = [{"messages": [system, {"role": "user", "content": f"Question {number}"}]} for number in range(40)]
    assert {cluster.replica_of(body, "/v1/chat/completions").name for body in bodies} == set(ADDRESSES)


@pytest.mark.parametrize("size", [0, 100, 65_536, 73_728, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_requests_arrive_as_they_were_sent(cluster: Cluster, size: int, chunked: bool) -> None:
    body = os.urandom(size)
    content = (body[start : start + 40_000] for start in range(0, size, 40_000)) if chunked else body
    headers = {"X-Request-ID": "Ab-1", "Authorization": "Bearer k", "Host": "example.org:1"}
    target = "/generate?a=%2F%20b&c=+"
    response = httpx.post(cluster.proxy.url + target, content=content, headers=headers)
    assert response.status_code == 200
    (received,) = [one for replica in cluster.replicas.values() for one in replica.received]
    assert received.body == body
    assert received.path == target
    got = {name.lower(): value for name, value in received.headers.items()}
    assert (got["x-request-id"], got["authorization"], got["host"]) == ("Ab-1", "Bearer k", "example.org:1")
    sent = {name.lower(): value for name, value in response.request.headers.items()}
    assert got == {name: value for name, value in sent.items() if name != "connection"}, "nothing added or changed"


def test_a_stream_is_not_held_back(cluster: Cluster) -> None:
    """The replica sends an event only after the client has the one before it."""
    for replica in cluster.replicas.values():
        replica.behave = "stream"
    with httpx.stream("POST", f"{cluster.proxy.url}/generate", content=b'{"prompt":"a"}', timeout=10) as response:
        (busy,) = [replica for replica in cluster.replicas.values() if replica.received]
        lines = (line for line in response.iter_lines() if line)
        for number in range(5):
            busy.permits.release()
            assert next(lines) == f"data: {number}"
        assert list(lines) == []


@pytest.mark.parametrize("size", [100, 65_536])
@pytest.mark.parametrize("behave", ["drop", "refuse"])
def test_another_replica_answers_where_one_did_not_begin_to(cluster: Cluster, behave: str, size: int) -> None:
    body = json.dumps({"prompt": "x" * (size - len('{"prompt": ""}'))}).encode()
    assert len(body) == size
    cluster.client.headers["X-Long"] = "h" * 4096
    failing = cluster.replica_of(body)
    failing.behave = behave
    answering = cluster.replica_of(body)
    del cluster.client.headers["X-Long"]
    assert answering is not failing
    assert [one.body for one in failing.received][-1] == answering.received[-1].body == body


def error_of(status: int, answer: bytes) -> str:
    """The code of an error that the proxy itself answered with, in the services' form."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head.lower()
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    code: str = error["code"]
    return code


def exchange(proxy: Proxy, sent: bytes) -> bytes:
    """What a new connection gets for these bytes, until it is closed."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(("size", "attempts"), [(100, 3), (100_000, 1)])
def test_a_replica_that_ends_before_it_answers_is_an_error(cluster: Cluster, size: int, attempts: int) -> None:
    """After others were tried, where the request is small enough to be sent again."""
    for replica in cluster.replicas.values():
        replica.behave = "drop"
    assert error_of(502, exchange(cluster.proxy, HEAD % size + b"x" * size)) == "replica_lost"
    assert sum(len(replica.received) for replica in cluster.replicas.values()) == attempts


@pytest.mark.parametrize("sent", [b"G\0T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"])
def test_what_is_not_http_reaches_no_replica(cluster: Cluster, sent: bytes) -> None:
    assert exchange(cluster.proxy, sent).startswith(b"HTTP/1.1 400 ")
    assert not any(replica.received for replica in cluster.replicas.values())


@pytest.fixture(scope="module")
def impatient(running: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy before the same replicas, which waits for one second wherever the shipped one waits for longer."""
    config = tmp_path_factory.mktemp("proxy") / "haproxy.cfg"
    shipped = (PROXY / "haproxy.cfg").read_text("utf-8")
    config.write_text(re.sub(r"\b((?:time|timeout (?:http-request|server))) \d+[sm]", r"\1 1s", shipped))
    proxy = Proxy(running.port, running.names, config)
    proxy.wait_up(3)
    yield proxy
    proxy.close()


def test_a_request_that_does_not_arrive_is_an_error(cluster: Cluster, impatient: Proxy) -> None:
    assert error_of(408, exchange(impatient, HEAD % 10 + b"{")) == "client_timeout"
    assert exchange(impatient, HEAD[:20]).startswith(b"HTTP/1.1 408 ")


def test_a_replica_that_does_not_answer_is_an_error(cluster: Cluster, impatient: Proxy) -> None:
    """It is not asked again: it may be at work."""
    for replica in cluster.replicas.values():
        replica.behave = "hold"
    assert error_of(504, exchange(impatient, HEAD % 2 + b"{}")) == "request_timeout"
    assert sum(len(replica.received) for replica in cluster.replicas.values()) == 1


@pytest.mark.extended
def test_a_replica_that_is_slow_to_answer_a_check_stays(cluster: Cluster) -> None:
    """Under load a service may take a second for it; a single check that fails means nothing."""
    slow = cluster.replicas[ADDRESSES[0]]
    slow.ready_after = 1.5
    try:
        time.sleep(5)
        assert cluster.proxy.num_up() == 3
    finally:
        slow.ready_after = 0


def test_what_was_begun_is_not_sent_again(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.behave = "cut"
    with pytest.raises(httpx.RemoteProtocolError):
        cluster.post({"prompt": "a", "stream": True})
    assert sum(len(replica.received) for replica in cluster.replicas.values()) == 1


def test_without_a_replica_the_error_is_the_services_own(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.is_ready = False
    cluster.proxy.wait_up(0)
    response = cluster.post({"prompt": "a"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == "no_replica"


def test_a_replica_that_drains_gets_nothing_new_and_ends_its_streams(cluster: Cluster) -> None:
    body = {"prompt": "a"}
    draining = cluster.replica_of(body)
    draining.behave = "stream"
    with httpx.stream("POST", f"{cluster.proxy.url}/v1/completions", json=body, timeout=20) as response:
        lines = (line for line in response.iter_lines() if line)
        draining.permits.release()
        assert next(lines) == "data: 0"
        draining.is_ready = False
        cluster.proxy.wait_up(2)
        before = len(draining.received)
        assert {cluster.replica_of({"prompt": f"{number}"}).name for number in range(20)} == {*ADDRESSES} - {
            draining.name
        }
        assert len(draining.received) == before
        for _ in range(4):
            draining.permits.release()
        assert list(lines) == ["data: 1", "data: 2", "data: 3", "data: 4"]


def test_a_client_that_leaves_is_seen_by_the_replica(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.behave = "hold"
    connection = http.client.HTTPConnection("127.0.0.1", cluster.proxy.port)
    connection.request("POST", "/generate", b'{"prompt":"a"}')
    wait_until(lambda: any(replica.received for replica in cluster.replicas.values()), timeout=10)
    (busy,) = [replica for replica in cluster.replicas.values() if replica.received]
    assert not busy.left.is_set()
    connection.close()
    assert busy.left.wait(5)


def test_a_client_that_sends_or_reads_slowly_delays_no_other(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.proxy.port)) as slow:
        slow.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{")
        for number in range(10):
            assert cluster.post({"prompt": f"{number}"}).status_code == 200
        assert sum(len(replica.received) for replica in cluster.replicas.values()) == 10
        slow.sendall(b'"prompt":"slowly!!"}')
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_is_kept_for_further_requests(cluster: Cluster) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.proxy.port)
    connection.connect()
    used = connection.sock
    for method, path, body in (("GET", "/info", None), ("POST", "/generate", b'{"prompt":"a"}'), ("GET", "/", None)):
        connection.request(method, path, body)
        assert connection.getresponse().read()
        assert connection.sock is used, "it was closed after an answer"
    connection.close()


def test_one_beginning_that_all_have_does_not_overload_a_replica(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.behave = "stream"
    threads = [threading.Thread(target=cluster.post, args=({"prompt": "all the same"},)) for _ in range(12)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: sum(len(r.received) for r in cluster.replicas.values()) == number + 1, 20)
    counts = sorted(len(replica.received) for replica in cluster.replicas.values())
    for replica in cluster.replicas.values():
        for _ in range(5 * 12):
            replica.permits.release()
    for thread in threads:
        thread.join()
    assert counts[-1] <= 6, "half more than the average of four"
    for replica in cluster.replicas.values():
        replica.permits = threading.Semaphore(0)


@pytest.mark.slow
def test_replicas_come_and_go_by_name(cluster: Cluster) -> None:
    """As with `docker compose up --scale`; nearly all beginnings stay where they were."""
    bodies = [{"prompt": f"{number} roads"} for number in range(60)]
    before = [cluster.replica_of(body).name for body in bodies]
    cluster.names.addresses = [*ADDRESSES[:2]]
    cluster.proxy.wait_up(2)
    during = [cluster.replica_of(body).name for body in bodies]
    assert set(during) == {*ADDRESSES[:2]}
    assert all(now == was for now, was in zip(during, before, strict=True) if was != ADDRESSES[2])
    cluster.names.addresses = [*ADDRESSES]
    cluster.proxy.wait_up(3)
    assert {cluster.replica_of(body).name for body in bodies} == {*ADDRESSES}


@pytest.mark.slow
def test_a_replica_whose_machine_does_not_answer_is_left_out(cluster: Cluster) -> None:
    started = time.monotonic()
    cluster.names.addresses = [*ADDRESSES, "127.0.0.5"]  # nothing listens there
    time.sleep(1)
    for number in range(20):
        assert cluster.post({"prompt": f"{number} hills"}).status_code == 200
    assert time.monotonic() - started < 20
