"""A model folder that changes while two processes read it."""

from pathlib import Path
from typing import ClassVar

import pytest

from services.inference.engine import EngineConfig, LoadError
from services.inference.engine.messages import Hello
from services.inference.loading import load_served_model
from services.inference.settings import InferenceSettings


class OtherModel:
    """Stands for a model's process that read the folder after it was replaced."""

    ended: ClassVar[list["OtherModel"]] = []

    def __init__(self, config: EngineConfig, load_timeout: float | None) -> None:
        pass

    def wait_hello(self) -> Hello:
        return Hello("another one", "cpu", "float32", context_length=8, num_blocks=8, max_rows=1)

    def close(self) -> None:
        self.ended.append(self)


def test_a_folder_that_is_replaced_while_it_is_loaded(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.loading.ModelProcess", OtherModel)
    with pytest.raises(LoadError, match="was replaced while it was being loaded"):
        load_served_model(InferenceSettings(model_dir=model_dir))
    assert len(OtherModel.ended) == 1
