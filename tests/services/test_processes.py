"""The services as processes: how they start, how they refuse to, and how they end."""

import json
import shutil
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder


def one_sentence(stderr: str) -> str:
    assert stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    return stderr


def test_bad_settings(process: Callable[..., Any]) -> None:
    code, _, stderr = process("-m", "services.tokenizer", model_dir="x", port="99999").wait_exit()
    assert code == 2
    assert "OWNLM_PORT" in one_sentence(stderr)
    assert "99999" in stderr


def test_no_folder(process: Callable[..., Any], tmp_path: Path) -> None:
    code, _, stderr = process("-m", "services.tokenizer", model_dir=tmp_path / "nothing").wait_exit()
    assert code == 1
    assert "nothing" in one_sentence(stderr)


def test_a_damaged_model_folder(process: Callable[..., Any], model_dir: Path, tmp_path: Path) -> None:  # B66
    folder = shutil.copytree(model_dir, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, _, stderr = process("-m", "services.inference", model_dir=folder).wait_exit()
    assert code == 1
    assert "model.safetensors" in one_sentence(stderr)


def test_a_research_checkpoint(process: Callable[..., Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What only the trainer can run is refused with the reason; its tokenizer is one like any other."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=16, d_model=8, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=8, d_ff=8, norm="none", position="none",
    )  # fmt: skip
    folder = tmp_path / "research"
    defaults = GenerationDefaults()
    save_model_folder(folder, model=Transformer(config), tokenizer=tokenizer, generation=defaults, provenance={})
    inference = process("-m", "services.inference", model_dir=folder)
    encoder = process("-m", "services.tokenizer", model_dir=folder).wait_ready()
    assert httpx.post(f"{encoder.url}/encode", json={"text": "fox"}).status_code == 200
    code, _, stderr = inference.wait_exit(timeout=60)
    assert code == 1
    assert "research checkpoint (no RMSNorm, no position encoding)" in one_sentence(stderr)


def test_a_busy_port(process: Callable[..., Any], model_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, stderr = process("-m", "services.tokenizer", model_dir=model_dir, port=port).wait_exit()
    assert code == 1
    assert f"127.0.0.1:{port}" in one_sentence(stderr)
    assert "OWNLM_PORT" in stderr


def test_a_host_that_is_no_name(process: Callable[..., Any], model_dir: Path) -> None:
    code, _, stderr = process("-m", "services.tokenizer", model_dir=model_dir, host="\udcff").wait_exit()
    assert code == 1
    assert "OWNLM_HOST" in one_sentence(stderr)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_end(process: Callable[..., Any], model_dir: Path, sent: signal.Signals) -> None:
    service = process("-m", "services.tokenizer", model_dir=model_dir).wait_ready()
    httpx.post(f"{service.url}/encode", json={"text": "my secret"})
    service.popen.send_signal(sent)
    code, stdout, stderr = service.wait_exit()
    assert (code, stderr) == (0, "")
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert lines[-1]["event"] == "stopped"
    assert "secret" not in stdout


def read_stream(url: str, max_tokens: int) -> list[str]:
    """The frames of a stream; the status where it was refused."""
    body = {"prompt": "a", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=30) as response:
        if response.status_code != 200:
            return [str(response.status_code)]
        return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


def wait_rows(url: str, *, running: int, waiting: int) -> None:
    wanted = {f"ownlm_running_rows {running:.1f}", f"ownlm_waiting_rows {waiting:.1f}"}
    deadline = time.monotonic() + 10
    while not wanted <= set(httpx.get(f"{url}/metrics").text.splitlines()):
        assert time.monotonic() < deadline, f"there are never {running} rows running and {waiting} waiting"
        time.sleep(0.01)


def test_sigterm_with_streams_and_a_queue(slow: Callable[..., Any]) -> None:  # B64
    service = slow(shutdown_timeout=3, max_batch=3)
    with ThreadPoolExecutor(6) as pool:
        short = pool.submit(read_stream, service.url, 12)
        long = [pool.submit(read_stream, service.url, 120) for _ in range(2)]
        wait_rows(service.url, running=3, waiting=0)
        queued_stream = pool.submit(read_stream, service.url, 5)
        queued = pool.submit(httpx.post, f"{service.url}/generate", json={"prompt": "a", "max_tokens": 5}, timeout=30)
        wait_rows(service.url, running=3, waiting=2)
        service.terminate()
        started = time.monotonic()
        time.sleep(0.5)
        late = httpx.post(f"{service.url}/generate", json={"prompt": "a"})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert httpx.get(f"{service.url}/readyz").status_code == 503
        assert queued.result().status_code == 503
        assert queued_stream.result() == ["503"]  # nothing had been sent: a stream still has a status of its own
        assert short.result()[-1] == "[DONE]"
        for stream in long:
            assert "shut down before" in json.loads(stream.result()[-1])["error"]["message"]
        code, _, stderr = service.wait_exit()
    assert (code, stderr) == (0, "")
    assert time.monotonic() - started < 3 + 2


def test_a_second_signal_ends_at_once(slow: Callable[..., Any]) -> None:  # B64
    service = slow(shutdown_timeout=60, max_batch=3)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(read_stream, service.url, 120)
        wait_rows(service.url, running=1, waiting=0)
        service.terminate()
        time.sleep(0.5)
        started = time.monotonic()
        service.terminate()
        code, _, _ = service.wait_exit()
        assert time.monotonic() - started < 1
        assert code == -signal.SIGTERM
        with pytest.raises(httpx.HTTPError):
            stream.result()


def test_who_comes_early_waits(process: Callable[..., Any], model_dir: Path) -> None:
    service = process("-m", "services.tokenizer", model_dir=model_dir).wait_listening()
    assert httpx.get(f"{service.url}/livez", timeout=30).status_code == 200


def test_sigterm_while_loading(process: Callable[..., Any], model_dir: Path) -> None:
    service = process("-m", "services.inference", model_dir=model_dir).wait_listening()
    service.terminate()
    code, _, _ = service.wait_exit(timeout=15)
    assert code in (0, -signal.SIGTERM)
