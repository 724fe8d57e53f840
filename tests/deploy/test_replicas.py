"""Three inference services behind the proxy, under load: one is killed, one is terminated."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.deploy.conftest import PROXY, Proxy
from tests.deploy.names import NameServer
from tests.services.conftest import Process, wait_until

pytestmark = pytest.mark.slow


class Stream(NamedTuple):
    """What a client saw of a stream."""

    number: int
    tokens: list[int]
    ended: bool


class Cluster(NamedTuple):
    """Services that take 20 ms for each step, and their proxy."""

    services: list[Process]
    proxy: Proxy

    def metric(self, index: int, name: str) -> float:
        return self.services[index].metric(name)

    def stream(self, number: int, max_tokens: int = 100) -> Stream:
        body = {
            "prompt": f"{number} foxes",
            "seed": number,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        tokens: list[int] = []
        try:
            with httpx.stream("POST", f"{self.proxy.url}/generate", json=body, timeout=120) as response:
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        return Stream(number, tokens, ended=True)
                    if line.startswith("data: ") and "choices" in (event := json.loads(line.removeprefix("data: "))):
                        tokens += event["choices"][0]["tokens"]
        except httpx.RemoteProtocolError:
            pass
        return Stream(number, tokens, ended=False)


@pytest.fixture
def cluster(haproxy: None, slow: Callable[..., Process], tmp_path: Path) -> Iterator[Cluster]:
    services = [slow(0.02, max_batch=16) for _ in range(3)]
    addresses = [service.url.removeprefix("http://") for service in services]
    servers = "\n".join(f"    server r{number} {address}" for number, address in enumerate(addresses))
    config = tmp_path / "haproxy.cfg"
    config.write_text(re.sub("    server-template .*", servers, (PROXY / "haproxy.cfg").read_text()))
    names = NameServer([])
    proxy = Proxy(1, names, config)
    proxy.wait_up(3)
    yield Cluster(services, proxy)
    proxy.close()
    names.close()


def load(cluster: Cluster, meanwhile: Callable[[], Any]) -> list[Stream]:
    """Let 18 clients read streams, and do something once all of them run."""
    seen: list[Stream] = []
    threads = [threading.Thread(target=lambda n=n: seen.append(cluster.stream(n))) for n in range(18)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(cluster.metric(i, "ownlm_running_rows") for i in range(3)) == 18, timeout=60)
    meanwhile()
    for thread in threads:
        thread.join()
    assert len(seen) == 18
    return seen


def test_a_replica_that_is_killed_loses_its_own_streams_only(cluster: Cluster) -> None:
    shares: list[float] = []

    def kill() -> None:
        shares.extend(cluster.metric(index, "ownlm_running_rows") for index in range(3))
        cluster.services[0].popen.send_signal(signal.SIGKILL)

    seen = load(cluster, kill)
    assert min(shares) > 0
    cut = [stream for stream in seen if not stream.ended]
    assert len(cut) == shares[0]
    assert all(len(stream.tokens) == 100 for stream in seen if stream.ended)
    # Its prompts are another replica's now, at once, and the answers are the same.
    for stream in cut[:3]:
        again = cluster.stream(stream.number)
        assert again.ended
        assert again.tokens[: len(stream.tokens)] == stream.tokens


def test_a_replica_that_is_terminated_loses_nothing(cluster: Cluster) -> None:
    """Requests that come while it drains go to the others, though their prompts are its own."""
    later: list[Stream] = []

    def end() -> None:
        cluster.services[0].terminate()
        later.extend(cluster.stream(number, max_tokens=2) for number in range(18))

    seen = load(cluster, end)
    assert all(stream.ended for stream in [*seen, *later])
    assert cluster.services[0].wait_exit()[0] == 0
