"""The chat templates of a model folder, wherever Hugging Face's libraries put them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.bpe import Tokenizer
from shared.chat.errors import ChatTemplateError
from shared.system.errors import short_repr
from shared.system.files import parse_json_object, write_text
from shared.system.regular_file import read_regular

DEFAULT = "default"
TOOLS = "tool_use"
"""transformers' name of the template for requests with tools."""

_MAX_BYTES = 1 << 20  # published ones have up to 20 KB
_MAX_CONFIG_BYTES = 16 << 20
_MAX_TEMPLATES = 100


@dataclass(frozen=True)
class TemplateFile:
    """The templates of a folder.

    Attributes:
        templates: Their sources by name; the one that is used by default is called "default".
        variables: What templates refer to beside the conversation: `bos_token`, `eos_token` and the like.
    """

    templates: Mapping[str, str]
    variables: Mapping[str, str]

    def choose(self, *, with_tools: bool) -> str:
        """The name of the template that transformers would choose.

        Raises:
            ChatTemplateError: There are several, and none of them is the default.
        """
        if with_tools and TOOLS in self.templates:
            return TOOLS
        if DEFAULT in self.templates:
            return DEFAULT
        names = ", ".join(sorted(map(repr, self.templates)))
        raise ChatTemplateError(f"the model has the chat templates {names}, but none is named {DEFAULT!r}")


def read_templates(folder: Path) -> TemplateFile | None:
    """Read a folder's templates.

    As in transformers, `chat_template.jinja` and `additional_chat_templates/NAME.jinja` come before `chat_template` in
    `tokenizer_config.json`.

    Returns:
        None where the folder has no template.

    Raises:
        ChatTemplateError: A file cannot be read, or is too large; names it.
    """
    config = _read_config(folder / "tokenizer_config.json")
    templates = dict(_from_files(folder)) or dict(_from_config(folder / "tokenizer_config.json", config))
    return TemplateFile(templates, dict(_special_tokens(config))) if templates else None


def read_template(file: Path, tokenizer: Tokenizer) -> TemplateFile:
    """A template in a file of its own, with the tokens that begin and end a text of a tokenizer as variables.

    Raises:
        ChatTemplateError: The file cannot be read, or is too large; names it.
    """
    return TemplateFile({DEFAULT: _read_text(file)}, role_variables(tokenizer))


def role_variables(tokenizer: Tokenizer) -> dict[str, str]:
    """`bos_token` and `eos_token` as templates find them in a folder that the tokenizer was saved to."""
    roles = {"bos_token": tokenizer.vocabulary.bos, "eos_token": tokenizer.vocabulary.eos}
    return {name: token for name, token in roles.items() if token is not None}


def write_templates(folder: Path, templates: Mapping[str, str]) -> None:
    """Write templates where `read_templates` finds them.

    Raises:
        ChatTemplateError: A name cannot be that of a file.
        OSError: A file cannot be written.
    """
    for name, template in templates.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
            raise ChatTemplateError(f"the chat template {short_repr(name)} cannot be the name of a file")
        file = folder / "chat_template.jinja"
        if name != DEFAULT:
            file = folder / "additional_chat_templates" / f"{name}.jinja"
            file.parent.mkdir(exist_ok=True)
        write_text(file, template)


def _from_files(folder: Path) -> Iterator[tuple[str, str]]:
    main = folder / "chat_template.jinja"
    if main.exists():
        yield DEFAULT, _read_text(main)
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if len(others) > _MAX_TEMPLATES:
        raise ChatTemplateError(f"{others[0].parent}: {len(others)} templates exceed the limit of {_MAX_TEMPLATES}")
    for file in others:
        yield file.stem, _read_text(file)


def _from_config(file: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = config.get("chat_template")
    if found is None:
        return
    entries = [{"name": DEFAULT, "template": found}] if isinstance(found, str) else found
    if not isinstance(entries, list) or len(entries) > _MAX_TEMPLATES:
        raise ChatTemplateError(f'{file}: "chat_template" must be a string or a list of templates with names')
    for entry in entries:
        name, template = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            raise ChatTemplateError(
                f'{file}: an entry of "chat_template" needs "name" and "template", got {short_repr(entry)}'
            )
        yield name, template


def _special_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of values that are a string or an object with `content`, those whose key ends in `_token`."""
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            yield key, content


def _read_config(file: Path) -> dict[str, Any]:
    try:
        return parse_json_object(read_regular(file, _MAX_CONFIG_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ChatTemplateError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ChatTemplateError(f"{file}: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return read_regular(file, _MAX_BYTES).decode()
    except OSError as error:
        raise ChatTemplateError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"{file}: not UTF-8 at byte {error.start}") from error
