"""`make up` seen from outside: the supervisor script with real services on real ports."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parent.parent.parent
STARTED = 240  # seconds until both services must have answered on a busy machine


def command(*args: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / "up.py"), *args]


def free_ports(count: int) -> list[int]:
    """Ports that nothing uses, below those that the system gives to any process that asks for one."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


def refusal(*args: str) -> str:
    done = subprocess.run(command(*args), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_busy_port_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [inference] = free_ports(1)
        assert f"port {port}" in refusal("--inference-port", str(inference), "--tokenizer-port", str(port))


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    inference, tokenizer = free_ports(2)
    ports = ("--inference-port", str(inference), "--tokenizer-port", str(tokenizer))
    assert "nowhere" in refusal(*ports, "--model", str(tmp_path / "nowhere"))


def test_a_damaged_folder_is_one_sentence(model_folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in model_folder.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    inference, tokenizer = free_ports(2)
    ports = ("--inference-port", str(inference), "--tokenizer-port", str(tokenizer))
    assert "model.safetensors" in refusal(*ports, "--model", str(damaged))


@pytest.mark.parametrize(("stop", "has_pages"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_it_serves_and_stops_cleanly(model_folder: Path, stop: signal.Signals, has_pages: bool, tmp_path: Path) -> None:
    inference, tokenizer = free_ports(2)
    args = command("--model", str(model_folder), "--inference-port", str(inference), "--tokenizer-port", str(tokenizer))
    log = tmp_path / "log"
    env = os.environ | {"PYTHONUNBUFFERED": "1", "OWNLM_PAGES": str(has_pages)}
    with log.open("wb") as sink:
        process = subprocess.Popen(args, stdout=sink, stderr=sink, env=env)
        try:
            deadline = time.monotonic() + STARTED
            while "are ready" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            assert f"curl -N http://127.0.0.1:{inference}/generate" in log.read_text()
            for port in (inference, tokenizer):
                assert (f"  http://127.0.0.1:{port}/ " in log.read_text()) == has_pages
                assert (httpx.get(f"http://127.0.0.1:{port}/").status_code == 200) == has_pages
            answer = httpx.post(f"http://127.0.0.1:{inference}/generate", json={"prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
            assert httpx.post(f"http://127.0.0.1:{tokenizer}/encode", json={"text": "a"}).json()["count"] == 1
            process.send_signal(stop)
            assert process.wait(timeout=240) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text()
    for port in (inference, tokenizer):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_ctrl_c_lets_the_trainer_save(tmp_path: Path) -> None:
    """`subprocess.run` would kill it a quarter of a second later, and print a traceback."""
    trainer = (
        "import signal, sys, time\n"
        "def save(*_):\n time.sleep(1)\n open('saved', 'w').close()\n sys.exit(130)\n"
        "signal.signal(signal.SIGINT, save)\nopen('running', 'w').close()\ntime.sleep(60)"
    )
    program = f"import scripts.up as up, sys, pathlib; up.ROOT = pathlib.Path({str(tmp_path)!r})\n"
    program += f"sys.exit(up.run_until_it_ends([sys.executable, '-c', {trainer!r}]))"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while not (tmp_path / "running").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (tmp_path / "saved").exists()
    assert errors == b""
