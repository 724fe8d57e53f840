"""What a run's folders take over from the model that it started from."""

import json
from pathlib import Path

import torch

from shared.bpe import Tokenizer
from shared.chat import read_templates
from shared.lm import GenerationDefaults, ModelConfig, Transformer, read_description, save_model_folder
from trainer.checkpoints.inherited import Inherited, inherit

SHAPE = {"d_model": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "d_ff": 24}


def write(folder: Path, tokenizer: Path, **files: object) -> Path:
    model = Transformer(ModelConfig(vocab_size=290, context_length=32, **SHAPE))
    opened = Tokenizer.from_files(tokenizer)
    save_model_folder(folder, model=model, tokenizer=opened, generation=GenerationDefaults(), provenance={})
    (folder / "checksums.json").unlink()
    for name, values in files.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))  # type: ignore[dict-item]
    return folder


def inherited(folder: Path) -> Inherited:
    description = read_description(folder)
    return inherit(description, description.tokenizer, torch.float32, description.config.context_length)


def test_a_folder_s_own_values_take_precedence(tokenizer_folder: Path, tmp_path: Path) -> None:
    config = {"chat_template": "theirs", "eos_token": "<|endoftext|>", "pad_token": {"content": "<|endoftext|>"}}
    config |= {"sep_token": "<none>", "tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": "code.py"}}
    parent = write(tmp_path / "parent", tokenizer_folder, tokenizer_config=config, config={"pad_token_id": 7})
    ours = write(tmp_path / "ours", tokenizer_folder)
    inherited(parent).write(ours)
    written = json.loads((ours / "tokenizer_config.json").read_text())
    assert (written["chat_template"], written["pad_token"]) == ("theirs", "<|endoftext|>")
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not {"sep_token", "auto_map"} & set(written)
    assert json.loads((ours / "config.json").read_text())["pad_token_id"] == 7

    with_template = write(tmp_path / "with_template", tokenizer_folder)
    (with_template / "chat_template.jinja").write_text("ours")
    inherited(parent).write(with_template)
    assert "chat_template" not in json.loads((with_template / "tokenizer_config.json").read_text())
    found = read_templates(with_template)
    assert found is not None
    assert found.templates == {"default": "ours"}


def test_several_templates_stay_several(tokenizer_folder: Path, tmp_path: Path) -> None:
    parent, ours = (write(tmp_path / name, tokenizer_folder) for name in ("parent", "ours"))
    (parent / "chat_template.jinja").write_text("one")
    (parent / "additional_chat_templates").mkdir()
    (parent / "additional_chat_templates" / "tool_use.jinja").write_text("two")
    inherited(parent).write(ours)
    found = read_templates(ours)
    assert found is not None
    assert found.templates == {"default": "one", "tool_use": "two"}


def test_the_name_is_that_of_the_folder_and_of_its_run(tokenizer_folder: Path, tmp_path: Path) -> None:
    """And of no other folder of this machine."""
    names = ("SmolLM2", "model", "runs/first/model", "runs/first/checkpoints/step-00000005")
    for name in names:
        write(tmp_path / name, tokenizer_folder)
    (tmp_path / "runs/first/train.toml").touch()
    found = [inherited(tmp_path / name).identity["name"] for name in names]
    assert found == ["SmolLM2", "model", "first/model", "first/checkpoints/step-00000005"]
