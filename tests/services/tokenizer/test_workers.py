"""Several processes on one port: killed, replaced, ended together."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from shared.bpe import Tokenizer
from tests.services.conftest import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def start(process: Callable[..., Any], model_dir: Path) -> Callable[..., Any]:
    def start_with(workers: int) -> Any:
        service = process("-m", "services.tokenizer", model_dir=model_dir, workers=workers).wait_listening()
        wait_until(lambda: httpx.get(f"{service.url}/readyz").status_code == 200)
        wait_until(lambda: len(worker_ids(service)) == workers)
        return service

    return start_with


def worker_ids(service: Any) -> list[int]:
    return [child.pid for child in psutil.Process(service.popen.pid).children()]


def counted(url: str) -> int:
    """How many texts all workers have encoded."""
    text = httpx.get(f"{url}/metrics").text
    found = re.search(r'ownlm_http_requests_total\{.*route="/encode",status="200"\} (\d+)', text)
    return int(found[1]) if found else 0


def test_a_worker_that_is_killed_is_replaced(start: Callable[..., Any], tokenizer: Tokenizer) -> None:
    service = start(2)
    killed, other = worker_ids(service)

    def encode() -> bool:
        with httpx.Client() as client:  # a connection of its own, which any worker may accept
            return bool(client.post(f"{service.url}/encode", json={"text": "a fox"}).json()["count"] > 0)

    assert all(encode() for _ in range(10))
    # Whichever worker is asked tells of all; one counts an answer after it has gone out.
    wait_until(lambda: counted(service.url) == 10)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(worker_ids(service)) == 2 and killed not in worker_ids(service))
    assert all(encode() for _ in range(10))
    wait_until(lambda: counted(service.url) == 20)  # a dead worker's requests were served all the same
    assert other in worker_ids(service)
    service.terminate()
    code, stdout, stderr = service.wait_exit()
    assert (code, stderr) == (0, "")
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert [line["signal"] for line in lines if line["event"] == "a worker died"] == ["SIGKILL"]
    assert lines[-1]["event"] == "stopped"


def test_metrics_are_of_all_processes(start: Callable[..., Any]) -> None:
    """Also of a worker that has ended, and the start is that of the service: an alert is for one that starts often."""
    service = start(2)
    supervisor = psutil.Process(service.popen.pid)
    assert service.metric("process_start_time_seconds") == pytest.approx(supervisor.create_time(), abs=0.1)
    before = service.metric("process_cpu_seconds_total")
    workers = supervisor.children()
    assert before >= sum(sum(worker.cpu_times()[:2]) for worker in workers) - 0.5
    memory = sum(process.memory_info().rss for process in (supervisor, *workers))
    assert service.metric("process_resident_memory_bytes") == pytest.approx(memory, rel=0.2)
    os.kill(workers[0].pid, signal.SIGKILL)
    wait_until(lambda: worker_ids(service) not in ([], [workers[1].pid], [worker.pid for worker in workers]))
    assert service.metric("process_cpu_seconds_total") >= before
    assert service.metric("process_start_time_seconds") == pytest.approx(supervisor.create_time(), abs=0.1)


def test_a_folder_that_cannot_be_served_is_told_once(process: Callable[..., Any], tmp_path: Path) -> None:
    code, _, stderr = process("-m", "services.tokenizer", model_dir=tmp_path / "nothing", workers=4).wait_exit()
    assert code == 1
    assert stderr.count("\n") == 1
    assert "nothing" in stderr


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_replaced(start: Callable[..., Any]) -> None:
    """Takes the minute after which it counts as hung."""
    service = start(2)
    hung = worker_ids(service)[0]
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: hung not in worker_ids(service) and len(worker_ids(service)) == 2)
    service.terminate()
    code, stdout, _ = service.wait_exit()
    assert code == 0
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert [line["pid"] for line in lines if line["event"] == "a worker hangs"] == [hung]


@pytest.mark.slow
def test_three_deaths_within_a_minute_end_the_service(start: Callable[..., Any]) -> None:
    service = start(2)
    for _ in range(3):
        known = set(worker_ids(service))
        os.kill(min(known), signal.SIGKILL)
        wait_until(lambda known=known: service.popen.poll() is not None or bool(set(worker_ids(service)) - known))
    code, _, stderr = service.wait_exit()
    assert code == 1
    assert stderr == "ownlm-tokenizer: 3 workers died within 60 seconds, the last one with signal SIGKILL\n"


@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGKILL], [signal.SIGTERM, signal.SIGTERM]])
def test_no_worker_outlives_its_supervisor(start: Callable[..., Any], signals: list[signal.Signals]) -> None:
    service = start(2)
    workers = [psutil.Process(worker) for worker in worker_ids(service)]
    for number in signals:
        service.popen.send_signal(number)
    service.wait_exit()
    gone, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive
    assert len(gone) == 2
