"""Where templates are found; the places are transformers'."""

import json
import os
from pathlib import Path

import pytest

from shared.chat import ChatTemplateError, read_templates


def test_a_folder_without_one(tmp_path: Path) -> None:
    assert read_templates(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert read_templates(tmp_path) is None


def test_of_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "x", "bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "n_token": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    file = read_templates(tmp_path)
    assert file is not None
    assert file.templates == {"default": "x"}
    assert file.variables == {"bos_token": "<s>", "eos_token": "</s>"}


def test_several_by_name(tmp_path: Path) -> None:
    entries = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    file = read_templates(tmp_path)
    assert file is not None
    assert (file.choose(with_tools=False), file.choose(with_tools=True)) == ("default", "tool_use")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "rag", "template": "x"}]}))
    file = read_templates(tmp_path)
    assert file is not None
    with pytest.raises(ChatTemplateError, match="'rag', but none is named 'default'"):
        file.choose(with_tools=False)


def test_files_come_first(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("new é")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("other")
    file = read_templates(tmp_path)
    assert file is not None
    assert file.templates == {"default": "new é", "rag": "other"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"chat_template": 1}', "a string or a list"),
        ('{"chat_template": ["x"]}', "an entry of"),
        ('{"chat_template": [{"name": "default"}]}', "an entry of"),
        ("{", "tokenizer_config.json"),
    ],
)
def test_a_damaged_configuration_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ChatTemplateError, match=reason):
        read_templates(tmp_path)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_bytes(b"\xff")
    with pytest.raises(ChatTemplateError, match=r"chat_template.jinja: not UTF-8 at byte 0"):
        read_templates(tmp_path)
    file.write_text("x" * ((1 << 20) + 1))
    with pytest.raises(ChatTemplateError, match=r"chat_template.jinja: cannot be read"):
        read_templates(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ChatTemplateError, match="found a FIFO"):
        read_templates(tmp_path)
