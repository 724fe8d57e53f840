"""A model folder that changes while two processes read it."""

import pickle
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest

from services.inference.engine import EngineConfig, LoadError
from services.inference.engine.ipc import Ready, model_identity
from services.inference.generation.loading import load_served_model
from services.inference.settings import InferenceSettings
from shared.lm import read_description


class OtherModel:
    """Stands for an engine process that read the folder after it was replaced."""

    ended: ClassVar[list["OtherModel"]] = []

    def __init__(self, config: EngineConfig, load_timeout: float | None) -> None:
        pass

    def wait_ready(self) -> Ready:
        return Ready("another one", "cpu", "float32", context_length=8, num_blocks=8, num_slots=1)

    def close(self) -> None:
        self.ended.append(self)


def test_a_folder_that_is_replaced_while_it_is_loaded(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.generation.loading.ModelProcess", OtherModel)
    with pytest.raises(LoadError, match="was replaced while it was being loaded"):
        load_served_model(InferenceSettings(model_dir=model_dir))
    assert len(OtherModel.ended) == 1


def test_the_worker_imports_no_pydantic_to_read_its_configuration(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Mock(side_effect=OSError(12, "no memory"))
    monkeypatch.setattr("services.inference.generation.loading.ModelProcess", start)
    with pytest.raises(LoadError, match="cannot start the engine process: no memory"):
        load_served_model(InferenceSettings(model_dir=model_dir, kv_cache_bytes="64MiB"))
    config = start.call_args.args[0]
    assert config.kv_cache_bytes == 64 << 20
    assert b"pydantic" not in pickle.dumps(config)


def test_a_process_that_takes_anothers_place_runs_on_the_same_device(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `auto` found a GPU that is gone, serving from the CPU would be another service."""
    folder = read_description(model_dir)
    ready = Ready(model_identity(folder.tokenizer.fingerprint, folder.config), "cuda", "bfloat16", 128, 8, 1)
    start, client = Mock(return_value=Mock(wait_ready=Mock(return_value=ready))), Mock()
    monkeypatch.setattr("services.inference.generation.loading.ModelProcess", start)
    monkeypatch.setattr("services.inference.generation.loading.EngineClient", client)
    load_served_model(InferenceSettings(model_dir=model_dir))
    launch = client.call_args.args[2]
    launch()
    first, second = (call.args[0] for call in start.call_args_list)
    assert (first.device, first.dtype) == ("auto", "auto")
    assert (second.device, second.dtype) == ("cuda", "bfloat16")
