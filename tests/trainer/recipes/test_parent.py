"""Options that `--init` fills."""

import json
from pathlib import Path

import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, ModelFolderError, Transformer, read_config, save_model_folder
from trainer.components.architecture import FOLDER_SETTINGS, architecture_settings, generation_settings
from trainer.components.parent import starting_from
from trainer.recipes.options import parse_train_settings
from trainer.settings.train import TrainSettings, to_table


@pytest.fixture(scope="module")
def folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parents") / "parent"
    torch.manual_seed(0)
    shape = {"d_model": 16, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "d_ff": 24}
    model = Transformer(ModelConfig(vocab_size=290, context_length=64, **shape))
    defaults = GenerationDefaults(temperature=0.3, top_k=5)
    save_model_folder(
        path, model=model, tokenizer=Tokenizer.from_files(tokenizer_folder), generation=defaults, provenance={}
    )
    return path


def test_what_is_left_open_is_that_of_the_folder(folder: Path, settings: TrainSettings) -> None:
    base = {"data": str(settings.data), "output": "out"}
    filled = parse_train_settings({**base, "init": str(folder), "max_steps": 7}, source="test")
    expected = parse_train_settings({**base, "max_steps": 7}, source="test")
    assert filled == starting_from(expected, folder)
    assert (filled.model.num_layers, filled.model.context_length, filled.watch.temperature) == (2, 64, 0.3)
    assert filled.model.initialization == "folder"
    decided = set(architecture_settings(read_config(folder))) | set(generation_settings(GenerationDefaults()))
    assert decided == set(FOLDER_SETTINGS)


def test_what_is_given_stays(folder: Path, settings: TrainSettings) -> None:
    given = {"context_length": 16, "temperature": 0.9, "num_layers": 3}  # the last is refused when the run starts
    table = {"data": str(settings.data), "output": "out", "init": str(folder), "extend_tokens": ["<|a|>", "<|b|>"]}
    filled = parse_train_settings(table | given, source="test")
    found = to_table(filled)
    assert {name: found[name] for name in given} == given
    assert filled.parent.extend_tokens == ("<|a|>", "<|b|>")
    # The file of a run that is resumed has all of them, and the folder may be gone.
    whole = {name: value for name, value in found.items() if value is not None}
    assert parse_train_settings({**whole, "init": "gone"}, source="test").model == filled.model


def test_a_path_that_is_no_model_folder_is_named(settings: TrainSettings, tmp_path: Path) -> None:
    base = {"data": str(settings.data), "output": "out"}
    for path, message in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "not a model folder, since it has no config.json"),
        (settings.data / "train.bin", "no such folder"),
    ):
        with pytest.raises(ModelFolderError, match=message):
            parse_train_settings({**base, "init": str(path)}, source="test")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ModelFolderError, match="'gpt2'"):
        parse_train_settings({**base, "init": str(tmp_path)}, source="test")
