"""The keys of tokenizer_config.json that name the begin- and end-of-text tokens."""

from pathlib import Path
from typing import Any, TypedDict

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.reading import read_json
from shared.bpe.vocabulary import Vocabulary
from shared.system.errors import short_repr


class Roles(TypedDict):
    """The tokens that begin and end a text, if known."""

    bos: str | None
    eos: str | None


def read_roles(folder: Path) -> Roles:
    """`bos_token` and `eos_token` of a folder's tokenizer_config.json, if there is one.

    Raises:
        TokenizerError: The file is damaged, or a value is not a token.
    """
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return {"bos": None, "eos": None}
    config = read_json(path)
    return {"bos": _content(path, config, "bos_token"), "eos": _content(path, config, "eos_token")}


def to_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer_config.json, for `PreTrainedTokenizerFast` of Hugging Face's transformers."""
    roles = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # A setting of the ByteLevel pre-tokenizer.
        **({} if vocabulary.byte_tokens else {"add_prefix_space": vocabulary.prefix_space}),
        "clean_up_tokenization_spaces": False,
        # Before transformers 5, the class returns token types too, which `generate` of a decoder refuses.
        "model_input_names": ["input_ids", "attention_mask"],
        **{key: token for key, token in roles.items() if token is not None},
    }


def _content(path: Path, config: dict[str, Any], key: str) -> str | None:
    value = config.get(key)
    # In older files, an added token is an object.
    content = value.get("content") if isinstance(value, dict) else value
    if content is not None and not isinstance(content, str):
        raise TokenizerError(f"{path}: {key} must be a token, not {short_repr(value)}")
    return content
