"""GET /training: the record of a folder that has one, a sentence where there is none, and the key."""

import json
import shutil
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from shared.lm.training_file import TRAINING_FILE
from tests.services.conftest import ready_client
from tests.services.inference.test_training_record import RECORD


def app_of(folder: Path, **settings: Any) -> Any:
    return create_app(InferenceSettings(model_dir=folder, threads=1, prefill_tokens=16, **settings))


def test_a_folder_without_a_record(client: TestClient) -> None:
    response = client.get("/training")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "the model folder has no training.json: ownlm writes one when it trains a model",
        "type": "not_found_error",
        "param": None,
        "code": "no_training_record",
    }


def test_a_record_behind_a_key(model_dir: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(model_dir, folder)
    (folder / "checksums.json").unlink()
    (folder / TRAINING_FILE).write_text(json.dumps({**RECORD, "tokenizer_fingerprint": tokenizer.fingerprint}))
    with ready_client(app_of(folder, api_keys="secret")) as client:
        assert client.get("/training").status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        assert client.get("/info").json()["no_training_record"] is None
        response = client.get("/training")
        assert response.json()["curves"]["loss"] == RECORD["curves"]["loss"]
        assert response.headers["content-type"] == "application/json"


def test_the_model_is_served_with_a_damaged_record(model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(model_dir, folder)
    (folder / "checksums.json").unlink()
    (folder / TRAINING_FILE).write_text('{"epochs": 3}')
    with ready_client(app_of(folder)) as client:
        response = client.get("/training")
        assert response.status_code == 404
        assert "training.json cannot be used: format_version: Field required" in response.json()["error"]["message"]
        assert client.post("/generate", json={"prompt": "fox", "max_tokens": 1}).status_code == 200


def test_info_has_the_architecture_and_the_origin(client: TestClient) -> None:
    info = client.get("/info").json()
    assert info["architecture"]["num_layers"] == 2
    assert sum(info["architecture"]["parameters"].values()) == info["parameters"]
    assert info["origin"]["architecture"] == "LlamaForCausalLM"
    assert info["no_training_record"] == client.get("/training").json()["error"]["message"]
