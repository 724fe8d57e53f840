"""The services as processes: how they start, how they refuse to, and how they end."""

import contextlib
import json
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder
from tests.services.conftest import cut_off, wait_until

pytestmark = pytest.mark.extended


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


@pytest.mark.case("D40")
@pytest.mark.parametrize(
    ("service", "file"),
    [("inference", "model.safetensors"), ("inference", "tokenizer.json"), ("tokenizer", "tokenizer.json")],
)
def test_a_model_folder_in_which_one_byte_changed(
    process: Callable[..., Any], model_dir: Path, tmp_path: Path, service: str, file: str
) -> None:
    """Each still opens and would be served: a weight is another number, a space of JSON another kind of space."""
    folder = shutil.copytree(model_dir, tmp_path / "damaged")
    content = bytearray((folder / file).read_bytes())
    place = content.index(b"\n ") + 1 if file == "tokenizer.json" else -1
    content[place] ^= ord(" ") ^ ord("\t") if file == "tokenizer.json" else 0x20
    (folder / file).write_bytes(content)
    code, _, stderr = process("-m", f"services.{service}", model_dir=folder).wait_exit()
    assert code == 1
    assert f"{file} is not what was written" in one_sentence(stderr)


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
    code, _, stderr = inference.wait_exit()
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


# Each token is a letter: else its first may be a part of a character, which is held back.
STREAM = {"prompt": "a", "max_tokens": 12, "stream": True, "logit_bias": {str(ord("a")): 100}}


def read_stream(url: str) -> list[str]:
    """The frames of a stream of twelve tokens; the status where it was refused."""
    with httpx.stream("POST", f"{url}/generate", json=STREAM) as response:
        if response.status_code != 200:
            return [str(response.status_code)]
        return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


def wait_draining(url: str) -> None:
    wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)


def test_sigterm_with_streams_and_a_queue(stepwise: Callable[..., Any]) -> None:  # B64
    """What runs is finished, however long that takes within the limit; what waits and what comes are refused."""
    service = stepwise(shutdown_timeout=3600, max_batch=3)
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(read_stream, service.url) for _ in range(3)]
        service.wait_rows(running=3, waiting=0)
        queued_stream = pool.submit(read_stream, service.url)
        queued = pool.submit(httpx.post, f"{service.url}/generate", json={"prompt": "a", "max_tokens": 5})
        service.wait_rows(running=3, waiting=2)
        service.terminate()
        wait_draining(service.url)
        late = httpx.post(f"{service.url}/generate", json={"prompt": "a"})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert queued.result().status_code == 503
        assert queued_stream.result() == ["503"]  # nothing had been sent: a stream still has a status of its own
        assert not any(stream.done() for stream in running)
        service.steps.allow(12)
        assert [stream.result()[-1] for stream in running] == ["[DONE]"] * 3
        code, _, stderr = service.wait_exit()  # not the whole of the limit
    assert (code, stderr) == (0, "")


def test_a_stream_that_takes_too_long_to_end_is_told(stepwise: Callable[..., Any]) -> None:  # B64
    service = stepwise(shutdown_timeout=0.5)

    def read() -> bytes:
        with httpx.stream("POST", f"{service.url}/generate", json=STREAM) as response:
            return cut_off(response)

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(read)
        service.wait_rows(running=1, waiting=0)
        service.terminate()
        *_, last, _ = stream.result().split(b"\n\n")
        assert "shut down before" in json.loads(last.removeprefix(b"data: "))["error"]["message"]
        code, _, stderr = service.wait_exit()
    assert (code, stderr) == (0, "")


def test_a_second_signal_ends_at_once(stepwise: Callable[..., Any]) -> None:  # B64
    service = stepwise(shutdown_timeout=3600)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(read_stream, service.url)
        service.wait_rows(running=1, waiting=0)
        service.terminate()
        wait_draining(service.url)
        service.terminate()
        code, _, _ = service.wait_exit()
        assert code == -signal.SIGTERM
        with pytest.raises(httpx.HTTPError):
            stream.result()


def test_who_comes_early_waits(process: Callable[..., Any], model_dir: Path) -> None:
    service = process("-m", "services.tokenizer", model_dir=model_dir).wait_listening()
    assert httpx.get(f"{service.url}/livez").status_code == 200


def test_many_clients_wait_while_the_event_loop_is_busy(process: Callable[..., Any], model_dir: Path) -> None:
    """Each is connected at once. Linux lets one more wait than asked for, and others ask again after a second."""
    service = process("-m", "services.tokenizer", model_dir=model_dir).wait_ready()
    address = httpx.URL(service.url)
    with contextlib.ExitStack() as stack:
        service.popen.send_signal(signal.SIGSTOP)
        stack.callback(service.popen.send_signal, signal.SIGCONT)
        for _ in range(500):
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=0.9))
    assert httpx.get(f"{service.url}/livez").status_code == 200


def test_sigterm_while_loading(process: Callable[..., Any], model_dir: Path) -> None:
    service = process("-m", "services.inference", model_dir=model_dir).wait_listening()
    service.terminate()
    code, _, _ = service.wait_exit()
    assert code in (0, -signal.SIGTERM)
