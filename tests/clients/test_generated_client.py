"""openapi-python-client makes clients of both services' documents, and they work."""

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from services.inference.app import create_app as create_inference
from services.inference.settings import InferenceSettings
from services.tokenizer.app import create_app as create_tokenizer
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.case("D58"),
    pytest.mark.skipif(not importlib.util.find_spec("openapi_python_client"), reason="ownlm[clients] is not installed"),
]

# As docs/reference/http-api.md has it: without this the generator leaves text/plain out, and says so.
CONFIG = "content_type_overrides: {text/plain: application/octet-stream}\npost_hooks: []\n"
URL = "http://localhost"


def generated(app: FastAPI, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package that is made for an app, imported."""
    (folder / "document.json").write_text(json.dumps(app.openapi()))
    (folder / "config.yml").write_text(CONFIG)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", "document.json"]
    done = subprocess.run(
        [*command, "--config", "config.yml", "--meta", "none", "--output-path", "made"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, done.stdout
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("made")


def client_of(made: Any, server: TestClient) -> Any:
    while (status := server.get("/readyz").status_code) != 200:
        assert status == 503
        time.sleep(0.01)
    client = made.Client(base_url=URL)
    client.set_httpx_client(httpx.Client(transport=_Through(server), base_url=URL))
    return client


class _Through(httpx.BaseTransport):
    """Sends what `httpx` has to say through the test's server."""

    def __init__(self, server: TestClient) -> None:
        self._server = server

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._server.request(
            request.method, str(request.url), content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))


def test_the_tokenizer_service(
    model_dir: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_tokenizer(TokenizerSettings(model_dir=model_dir))
    made = generated(app, tmp_path, monkeypatch)
    encode = importlib.import_module("made.api.default.encode")
    models, types = importlib.import_module("made.models"), importlib.import_module("made.types")
    with TestClient(app, base_url=URL) as server:
        client = client_of(made, server)
        wanted = tokenizer.encode("Once upon é")
        assert encode.sync(client=client, body=models.EncodeRequest(text="Once upon é")).tokens == wanted
        raw = types.File(payload=BytesIO("Once upon é".encode()))
        assert encode.sync(client=client, body=raw).tokens == wanted


def test_the_inference_service(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_inference(InferenceSettings(model_dir=model_dir, threads=1))
    made = generated(app, tmp_path, monkeypatch)
    generate = importlib.import_module("made.api.default.generate")
    completions = importlib.import_module("made.api.open_ai.completions")
    models = importlib.import_module("made.models")
    with TestClient(app, base_url=URL) as server:
        client = client_of(made, server)
        answer = generate.sync(client=client, body=models.GenerateRequest(prompt="Once", max_tokens=3, seed=1))
        assert answer.usage.completion_tokens <= 3
        request = models.CompletionRequest(prompt=["Once"], max_tokens=3, seed=1)
        assert completions.sync(client=client, body=request).choices[0].text == answer.choices[0].text
