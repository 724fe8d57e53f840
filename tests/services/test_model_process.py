"""The inference service as its two processes: what happens to one when the other ends."""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

STORY = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "seed": 3}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def child_of(service: Any, *, after: psutil.Process | None = None) -> psutil.Process:
    """The model's process, or the one that was started in its place."""
    children: list[psutil.Process] = []

    def found() -> bool:
        children[:] = [child for child in psutil.Process(service.popen.pid).children() if child != after]
        return bool(children)

    wait_for(found)
    return children[0]


def tell(service: Any) -> httpx.Response:
    return httpx.post(f"{service.url}/generate", json=STORY, timeout=60)


def metric(service: Any, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_the_life_of_the_models_process(slow: Callable[..., Any]) -> None:
    """Killed in mid-stream it is told, replaced, and gives the same again; killed three times it is not replaced."""
    service = slow(0.02, device="cpu")
    child = child_of(service)
    for pid in (service.popen.pid, child.pid):
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text(), "it takes 200 MB and a second"
    assert os.getpgid(child.pid) != os.getpgid(service.popen.pid)  # Ctrl-C in a terminal is for a process group
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    before = tell(service).json()["choices"]

    at_rest = cpu_seconds(child)
    for _ in range(100):
        httpx.get(f"{service.url}/livez")
    assert cpu_seconds(child) - at_rest < 0.1, "a process without work takes no time"
    assert metric(service, "ownlm_model_process_start_time_seconds") == pytest.approx(child.create_time(), abs=0.1)

    with httpx.stream(
        "POST", f"{service.url}/generate", json={**STORY, "n": 4, "max_tokens": 100, "stream": True}, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        child.kill()
        *_, last = [line for line in lines if line.startswith("data: ")]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "engine_restarted"
    assert "SIGKILL" in error["message"]
    for answer in (httpx.get(f"{service.url}/readyz"), tell(service)):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "SIGKILL" in answer.json()["error"]["message"]
    assert httpx.get(f"{service.url}/livez").status_code == 200

    wait_for(lambda: httpx.get(f"{service.url}/readyz").status_code == 200)
    assert tell(service).json()["choices"] == before
    assert metric(service, "ownlm_engine_restarts_total") == 1

    child = child_of(service)
    assert metric(service, "ownlm_model_process_start_time_seconds") == pytest.approx(child.create_time(), abs=0.1)
    child.kill()
    child = child_of(service, after=child)
    child.kill()
    code, _, stderr = service.wait_exit()
    assert code == 1
    assert stderr.count("\n") == 1
    assert "SIGKILL, as it does where the system's memory runs out, the 3rd time within a minute" in stderr


def test_the_models_process_ends_with_the_service(process: Callable[..., Any], model_dir: Path) -> None:
    """However the service ends, and even while the model is loaded."""
    loading = process("-m", "services.inference", model_dir=model_dir).wait_listening()
    ready = process("-m", "services.inference", model_dir=model_dir, threads=1).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(tell, ready)
        children = [child_of(loading), child_of(ready)]
        loading.popen.kill()
        ready.popen.kill()
        gone, alive = psutil.wait_procs(children, timeout=15)
    assert not alive, gone
