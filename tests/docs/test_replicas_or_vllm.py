"""The commands for a proxy of one's own, and for vLLM."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import httpx
import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import ModelConfig
from tests.deploy.names import NameServer
from tests.deploy.replicas import Replica
from tests.docs.pages import DOCS, ROOT, run_example, serve_example
from tests.ports import free_port
from tests.services.conftest import save_random_model

PAGE = DOCS / "how-to" / "replicas-or-vllm.md"


@pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="HAProxy is not installed (Debian: apt-get install haproxy)"
)
def test_a_proxy_on_machines_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    names, replica = NameServer(["127.0.0.2"]), Replica("127.0.0.2", free_port())
    instead = {
        "apt-get install haproxy": "command -v haproxy",
        "PORT=8000 BIND='*'": "PORT={port} BIND=127.0.0.1",
        "ADMIN_PORT=9999": f"ADMIN_PORT={free_port()}",
        "inference.internal:8000": f"inference.internal:{replica.server_port}",
        "10.0.0.2:53": names.address,
    }
    try:
        with serve_example(PAGE, "a name server", tmp_path, instead) as url:
            assert httpx.post(f"{url}/generate", json={"prompt": "a"}).json() == {"replica": "127.0.0.2"}
    finally:
        names.close()
        replica.close()


@pytest.fixture
def with_vllm(tmp_path: Path) -> Path:
    """A folder with a model, and an environment with vLLM, which does not compile the model: that takes minutes."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm")
    tokenizer = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], ["<|endoftext|>"])
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=256, d_model=64, num_layers=2, num_heads=2,
        num_kv_heads=2, head_dim=32, d_ff=128, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    save_random_model(tmp_path / "models" / "demo", config, tokenizer)
    python = tmp_path / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    arguments = """OWNLM_VLLM_ARGS='{"enforce_eager": true}'"""
    python.write_text(f'#!/bin/sh\n{arguments} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return tmp_path


@pytest.mark.vllm
def test_a_service_on_vllm(with_vllm: Path) -> None:
    with serve_example(PAGE, "vLLM", with_vllm, {}) as url:
        assert httpx.get(f"{url}/info").json()["engine"]["name"] == "vllm"
        answer = httpx.post(f"{url}/generate", json={"prompt": "Once", "max_tokens": 4, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.vllm
def test_both_measured_in_one_run(with_vllm: Path) -> None:
    """It ends with 1 where a target is missed, as a busy machine does."""
    instead = {
        "python -m benchmarks.serving --model DIR": "python -m benchmarks.serving --rounds 1 --model $PWD/models/demo",
        "--vllm .venv-vllm": "--vllm $PWD/.venv-vllm",
        "--only 'ownlm float32' vLLM": "--only 'ownlm float32' vLLM || test $? -eq 1",
    }
    printed = run_example(PAGE, "vLLM and minutes", with_vllm, instead)
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith('{"machine"')]
    assert len(reports) == 1, printed
    assert {(row["name"], row["clients"]) for row in reports[0]["results"]} == {
        (f"{name} float32", clients) for name in ("ownlm", "vLLM") for clients in (1, 8, 32)
    }
