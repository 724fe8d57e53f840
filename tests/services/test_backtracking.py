"""A tokenizer from elsewhere whose pattern backtracks without end: its texts are refused, and all else goes on."""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer
from tests.services.conftest import Process

pytestmark = [pytest.mark.extended, pytest.mark.case("D19")]

TEXT = "a" * 70
TOO_LONG = r"the tokenizer's pattern took more than 1\.0 s of CPU time for (a text of 70|73) characters"


@pytest.fixture(scope="module")
def evil_dir(model_dir: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(model_dir, tmp_path_factory.mktemp("evil") / "model")
    evil = Tokenizer(replace(tokenizer.vocabulary, pattern=r"(?:a|a)+(?:\w|\w)*b|\s+|[\s\S]"))
    evil.save(folder)
    provenance = (folder / "ownlm.json").read_text(encoding="utf-8")
    (folder / "ownlm.json").write_text(provenance.replace(tokenizer.fingerprint, evil.fingerprint), encoding="utf-8")
    (folder / "checksums.json").unlink()
    return folder


def refused_while_probes_answer(url: str, request: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool, httpx.Client() as client:
        answer = pool.submit(httpx.post, timeout=240, **request)
        num_probes = 0
        while not answer.done():
            assert client.get(f"{url}/livez", timeout=240).status_code == 200
            num_probes += 1
        # At most two fit around a second in which the event loop is held up.
        assert num_probes > 4
    assert answer.result().status_code == 400
    assert re.search(TOO_LONG, answer.result().json()["error"]["message"])


def ends_when_asked(service: Process, request: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, timeout=240, **request)
        refused_while_probes_answer(service.url, request)
        service.terminate()
        code, _, stderr = service.wait_exit(timeout=60)
        assert (code, stderr) == (0, "")
        assert answer.result().status_code == 400


def test_the_tokenizer_service(process: Callable[..., Process], evil_dir: Path) -> None:
    service = process("-m", "services.tokenizer", model_dir=evil_dir, cpu_threads=2).wait_ready()
    url = f"{service.url}/encode"
    assert httpx.post(url, json={"text": "b a fox"}).json()["count"] > 0
    for request in (
        {"json": {"text": ["fox", TEXT]}},
        {"json": {"text": TEXT, "return_pieces": True}},
        {"content": TEXT, "headers": {"content-type": "text/plain"}},
    ):
        refused_while_probes_answer(service.url, {"url": url, **request})
    ends_when_asked(service, {"url": url, "json": {"text": TEXT}})


@pytest.mark.slow
def test_the_inference_service(process: Callable[..., Process], evil_dir: Path) -> None:
    service = process("-m", "services.inference", model_dir=evil_dir, threads=1, cpu_threads=2).wait_ready()
    generate = {"url": f"{service.url}/generate", "json": {"prompt": TEXT, "max_tokens": 1}}
    refused_while_probes_answer(service.url, generate)
    completion = {"url": f"{service.url}/v1/completions", "json": {"model": "model", "prompt": TEXT, "max_tokens": 1}}
    refused_while_probes_answer(service.url, completion)
    assert httpx.post(f"{service.url}/generate", json={"prompt": "fox", "max_tokens": 1}).status_code == 200
    ends_when_asked(service, generate)
