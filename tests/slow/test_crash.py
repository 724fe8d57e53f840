"""Processes killed, stopped or asked to end while clients are served: every client gets a response or an error.

Figures are printed: `pytest -m slow -s tests/slow/test_crash.py`.
"""

import asyncio
import json
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS, MAX_BATCH = 24, 8
IN_MID_ANSWER = "cut off"  # the connection ended without a word


def child_of(service: Any) -> psutil.Process | None:
    children = psutil.Process(service.popen.pid).children()
    return children[0] if children else None


class Clients:
    """Clients that ask again and again, and remember what became of each question."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: Counter[str] = Counter()
        self.answers: dict[int, set[str]] = defaultdict(set)  # by seed: more than one is a fault
        self.client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def one(self, seed: int, *, stream: bool) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "seed": seed, "stream": stream}
        tokens: list[int] = []
        outcome = IN_MID_ANSWER
        try:
            async with self.client.stream("POST", f"{self.url}/generate", json=body) as response:
                if response.status_code != 200 or not stream:
                    content = json.loads(await response.aread())
                    outcome = "whole" if response.status_code == 200 else content["error"]["code"]
                    tokens = content["choices"][0]["tokens"] if outcome == "whole" else []
                else:
                    async for frame in _frames(response):
                        if frame is None:
                            outcome = "whole"
                        elif "error" in frame:
                            outcome = f"frame {frame['error']['code']}"
                        else:
                            tokens += frame["choices"][0]["tokens"]
        except httpx.TransportError:  # after an error too a stream stays incomplete
            pass
        self.outcomes[outcome] += 1
        if outcome == "whole":
            self.answers[seed].add(str(tokens))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopped = False

        async def client(seed: int) -> None:
            while not stopped:
                await self.one(seed, stream=seed % 3 > 0)
                await asyncio.sleep(0.01)  # those that are refused

        async with self.client:
            tasks = [asyncio.create_task(client(seed)) for seed in range(CLIENTS)]
            await self.until(lambda page: page["ownlm_running_rows"] == MAX_BATCH)
            yield
            stopped = True
            await asyncio.gather(*tasks)

    async def until(self, condition: Callable[[dict[str, float]], bool]) -> None:
        async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(120):
            while not condition(_numbers((await client.get(f"{self.url}/metrics")).text)):
                await asyncio.sleep(0.01)

    async def ready(self, status: int = 200) -> float:
        """Wait until /readyz answers so; gives the seconds. The service is alive all the time."""
        started = time.monotonic()
        async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(120):
            while (await client.get(f"{self.url}/readyz")).status_code != status:
                assert (await client.get(f"{self.url}/livez")).status_code == 200
                await asyncio.sleep(0.005)
        return time.monotonic() - started


async def _frames(response: httpx.Response) -> AsyncIterator[dict[str, Any] | None]:
    """The frames of a stream, and None for its end."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield None if line == "data: [DONE]" else json.loads(line.removeprefix("data: "))


def _numbers(page: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", page, re.MULTILINE)}


def drain(service: Any) -> Any:
    """Read its log: a full pipe would stop it."""
    threading.Thread(target=service.popen.stdout.read, daemon=True).start()
    return service


def is_idle(page: dict[str, float]) -> bool:
    """Nothing is held but the question for this page."""
    held = ("ownlm_running_rows", "ownlm_waiting_rows", "ownlm_kv_blocks_used")
    return not any(page[name] for name in held) and page["ownlm_http_requests_in_flight"] == 1


def test_the_model_is_killed_under_load(slow: Callable[..., Any]) -> None:
    """kill -9 twice while 24 clients are served: all get an error and are served again, until the service gives up."""
    service = drain(slow(0.01, max_batch=MAX_BATCH))
    clients = Clients(service.url)
    seconds: list[tuple[float, float]] = []

    async def run() -> None:
        async with clients.running():
            for _ in range(2):
                child = child_of(service)
                assert child
                child.kill()
                seconds.append((await clients.ready(503), await clients.ready()))
                await clients.until(lambda page: page["ownlm_running_rows"] == MAX_BATCH)
        await clients.until(is_idle)
        await clients.until(lambda page: page["ownlm_engine_restarts_total"] == 2)

    asyncio.run(run())
    reported = ", ".join(f"not ready after {down * 1e3:.0f} ms, ready {up:.1f} s later" for down, up in seconds)
    print(f"\nmodel killed under load: {reported}; {dict(clients.outcomes)}")
    assert clients.outcomes.keys() <= {"whole", "engine_restarted", "restarting", "frame engine_restarted"}
    assert clients.outcomes["frame engine_restarted"] > 0
    assert [len(answers) for answers in clients.answers.values()] == [1] * CLIENTS, "the same before and after"

    last = Clients(service.url)

    async def end() -> None:
        async with last.client:
            streams = [asyncio.create_task(last.one(seed, stream=True)) for seed in range(CLIENTS)]
            await last.until(lambda page: page["ownlm_running_rows"] == MAX_BATCH)
            while service.popen.poll() is None:
                if child := child_of(service):
                    child.kill()
                await asyncio.sleep(0.05)
            await asyncio.gather(*streams)

    asyncio.run(end())
    stderr = service.popen.stderr.read()
    print(f"the last time: {dict(last.outcomes)}; {stderr.strip()}")
    assert service.popen.returncode == 1
    assert "SIGKILL" in stderr
    assert "within a minute" in stderr
    assert "Traceback" not in stderr


def test_a_model_that_hangs_delays_no_probe(slow: Callable[..., Any]) -> None:
    """Stopped in mid-step: requests end by their timeouts, everything else answers; when it goes on, so do they."""
    service = drain(slow(0.01, max_batch=MAX_BATCH, queue_timeout=1, request_timeout=2))
    clients, later = Clients(service.url), Clients(service.url)
    child = child_of(service)
    assert child

    async def run() -> None:
        async with clients.client:
            tasks = [asyncio.create_task(clients.one(seed, stream=seed % 2 > 0)) for seed in range(CLIENTS)]
            await clients.until(lambda page: page["ownlm_running_rows"] == MAX_BATCH)
            child.suspend()
            started = time.monotonic()
            await clients.ready()
            await asyncio.gather(*tasks)
            print(
                f"\nmodel stopped: all got an error after {time.monotonic() - started:.1f} s: {dict(clients.outcomes)}"
            )
        child.resume()
        await later.until(is_idle)
        async with later.client:
            await later.one(1, stream=True)

    asyncio.run(run())
    assert clients.outcomes.keys() <= {"whole", "queue_timeout", "request_timeout", "frame request_timeout"}
    assert clients.outcomes["queue_timeout"] > 0
    assert clients.outcomes["frame request_timeout"] > 0
    assert later.outcomes == {"whole": 1}


def test_sigterm_under_load(slow: Callable[..., Any]) -> None:
    """SIGTERM with 24 streams open or waiting (B64): each ends whole or in an error; the service exits in order."""
    service = drain(slow(0.05, max_batch=MAX_BATCH, shutdown_timeout=2))
    clients = Clients(service.url)

    async def run() -> None:
        async with clients.client:
            tasks = [asyncio.create_task(clients.one(seed, stream=True)) for seed in range(CLIENTS)]
            await clients.until(
                lambda page: (
                    page["ownlm_running_rows"] == MAX_BATCH and page["ownlm_waiting_rows"] == CLIENTS - MAX_BATCH
                )
            )
            service.terminate()
            await asyncio.gather(*tasks)

    asyncio.run(run())
    started = time.monotonic()
    code = service.popen.wait(30)
    print(
        f"\nSIGTERM under load: {dict(clients.outcomes)}; ended {time.monotonic() - started:.1f} s after the last one"
    )
    assert (code, service.popen.stderr.read()) == (0, "")

    assert clients.outcomes.keys() <= {"whole", "engine_unavailable", "frame engine_unavailable"}
    assert clients.outcomes["engine_unavailable"] == CLIENTS - MAX_BATCH


def test_the_http_process_is_killed_under_load(slow: Callable[..., Any]) -> None:
    """SIGKILL leaves no engine process behind, though it is in the middle of a step."""
    service = drain(slow(0.5, max_batch=MAX_BATCH))
    child = child_of(service)
    assert child
    clients = Clients(service.url)

    async def run() -> float:
        async with clients.client:
            tasks = [asyncio.create_task(clients.one(seed, stream=True)) for seed in range(CLIENTS)]
            await clients.until(lambda page: page["ownlm_running_rows"] == MAX_BATCH)
            service.popen.send_signal(signal.SIGKILL)
            started = time.monotonic()
            await asyncio.gather(*tasks)
            child.wait(15)  # raises if it stays
            return time.monotonic() - started

    print(f"\nHTTP process killed: the model's is gone after {asyncio.run(run()):.2f} s")
    assert clients.outcomes == {IN_MID_ANSWER: CLIENTS}
