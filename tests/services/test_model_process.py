"""The inference service as its two processes: what happens to one when the other ends."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.services.conftest import wait_until

pytestmark = pytest.mark.extended

STORY_TOKENS = 20
STORY = {"prompt": "Once upon a time", "max_tokens": STORY_TOKENS, "ignore_eos": True, "seed": 3}


def children_of(service: Any) -> list[psutil.Process]:
    return psutil.Process(service.popen.pid).children()


def child_of(service: Any) -> psutil.Process:
    """The engine process."""
    wait_until(lambda: bool(children_of(service)))
    return children_of(service)[0]


def kill_all_children(service: Any) -> None:
    """Kill each engine process as soon as there is one, until the service ends."""

    def kill_next() -> bool:
        for child in children_of(service):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return service.popen.poll() is not None

    wait_until(kill_next)


def tell(service: Any) -> httpx.Response:
    return httpx.post(f"{service.url}/generate", json=STORY)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_the_life_of_the_models_process(stepwise: Callable[..., Any]) -> None:
    """Killed mid-stream, it is reported, replaced, and answers the same again; killed three times, it stays away."""
    service = stepwise()
    child = child_of(service)
    for pid in (service.popen.pid, child.pid):
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text(), "it takes 200 MB and a second"
    assert os.getpgid(child.pid) != os.getpgid(service.popen.pid)  # Ctrl-C in a terminal is for a process group
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    service.steps.allow(STORY_TOKENS)
    before = tell(service).json()["choices"]

    at_rest, begin = cpu_seconds(child), time.monotonic()
    for _ in range(100):
        httpx.get(f"{service.url}/livez")
    most = 0.1 + 0.1 * (time.monotonic() - begin)  # on a machine on which this takes long, the process wakes more often
    assert cpu_seconds(child) - at_rest < most, "a process without work takes no time"
    assert service.metric("ownlm_model_process_start_time_seconds") == pytest.approx(child.create_time(), abs=0.1)

    with httpx.stream(
        "POST", f"{service.url}/generate", json={**STORY, "n": 4, "max_tokens": 100, "stream": True}
    ) as stream:
        lines = stream.iter_lines()
        service.steps.allow(3)
        next(lines)
        child.kill()
        rest: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            rest.extend(lines)
    error = json.loads(rest[-2].removeprefix("data: "))["error"]
    assert error["code"] == "engine_restarted"
    assert "SIGKILL" in error["message"]
    for answer in (httpx.get(f"{service.url}/readyz"), tell(service)):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "SIGKILL" in answer.json()["error"]["message"]
    assert httpx.get(f"{service.url}/livez").status_code == 200

    service.starts.allow()
    service.wait_ready()
    service.steps.allow(STORY_TOKENS)
    assert tell(service).json()["choices"] == before
    assert service.metric("ownlm_engine_restarts_total") == 1

    child = child_of(service)
    assert service.metric("ownlm_model_process_start_time_seconds") == pytest.approx(child.create_time(), abs=0.1)
    kill_all_children(service)
    code, _, stderr = service.wait_exit()
    assert code == 1
    assert stderr.count("\n") == 1
    assert "SIGKILL, possibly because the system ran out of memory, the 3rd time within a minute" in stderr


def test_the_models_process_ends_with_the_service(process: Callable[..., Any], model_dir: Path) -> None:
    """However the service ends, and even while the model is loaded."""
    loading = process("-m", "services.inference", model_dir=model_dir).wait_listening()
    ready = process("-m", "services.inference", model_dir=model_dir, threads=1).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(tell, ready)
        children = [child_of(loading), child_of(ready)]
        loading.popen.kill()
        ready.popen.kill()
        gone, alive = psutil.wait_procs(children, timeout=240)
    assert not alive, gone


@pytest.mark.case("D18")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_idle_connections_that_take_all_descriptors_leave_a_service_that_works(
    loop: str, process: Callable[..., Any], model_dir: Path, tmp_path: Path
) -> None:
    """The engine process is replaced, connections that were accepted go on, and one line says what is short.

    The event loop does not spend its time on failing to accept: it did so 57,000 times before the engine was ready.
    """
    errors = tmp_path / "errors"
    program = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        + ("" if loop == "uvloop" else "sys.modules['uvloop'] = None\n")
        + "from shared.http.server import file_descriptors\n"
        + f"errors, log_error = open({str(errors)!r}, 'ab', buffering=0), file_descriptors.log_error\n"
        + "file_descriptors.log_error = lambda *error: (errors.write(b'.'), log_error(*error))\n"
        + "runpy.run_module('services.inference', run_name='__main__')"
    )
    service = process("-c", program, model_dir=model_dir, threads=1).wait_ready()
    address = httpx.URL(service.url)
    with httpx.Client(base_url=service.url, timeout=30) as client, contextlib.ExitStack() as stack:
        assert client.get("/livez").status_code == 200
        for _ in range(80):
            idle = stack.enter_context(socket.socket())
            idle.setblocking(False)
            idle.connect_ex((address.host, address.port))
        child = child_of(service)
        child.kill()
        wait_until(lambda: client.get("/readyz").status_code == 503)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/generate", json=STORY).status_code == 200
        assert child_of(service).pid != child.pid
    service.terminate()
    code, stdout, stderr = service.wait_exit()
    assert (code, stderr) == (0, "")
    assert errors.stat().st_size < 2_000
    events = [json.loads(line)["event"] for line in stdout.splitlines()]
    assert events.count("no file descriptors are left for new connections") == 1
    assert events.count("engine process restarted") == 1
