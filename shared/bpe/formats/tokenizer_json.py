"""Hugging Face's tokenizer.json, for byte-level BPE and for SentencePiece's with byte fallback.

Anything in the file that would change ids in a way that this package does not support is refused by name. `truncation`
and `padding` are ignored: they shape batches, not tokens, and transformers sets them in every call.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats import byte_fallback, byte_level
from shared.bpe.formats.printable_entries import (
    ordinary_entries,
    parse_merges,
    parse_tokens,
    parse_vocab,
    printable_tokens,
)
from shared.bpe.formats.reading import read_json
from shared.bpe.formats.steps import names_of, steps_of
from shared.bpe.formats.tokenizer_config import read_roles, to_config
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.errors import short_repr
from shared.system.files import to_json_bytes
from shared.system.garbage import collection_paused

_FLAGS = ("special", "lstrip", "rstrip", "normalized")


def read(path: Path) -> Vocabulary:
    """Read a tokenizer.json, and the tokenizer_config.json beside it for the tokens that begin and end a text.

    Raises:
        TokenizerError: The file is missing, damaged, or describes a tokenizer that would not be matched exactly.
    """
    content = read_json(path)
    roles = read_roles(path.parent)
    try:
        return _parse(path, content, roles["bos"], roles["eos"])
    except TokenizerError as error:
        raise TokenizerError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


@collection_paused()
def files(vocabulary: Vocabulary) -> dict[str, bytes]:
    """What tokenizer.json and tokenizer_config.json contain, by their names."""
    contents = {"tokenizer.json": _to_hf(vocabulary), "tokenizer_config.json": to_config(vocabulary)}
    return {name: to_json_bytes(content) for name, content in contents.items()}


def _parse(path: Path, content: dict[str, Any], bos: str | None, eos: str | None) -> Vocabulary:
    model = content.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(_without_model(content))
    _check_model(model)
    vocab = parse_vocab(path, model.get("vocab"))
    added = _parse_added(content.get("added_tokens") or [], vocab)
    if not isinstance(model.get("merges"), list):
        raise TokenizerError("model.merges must be a list")
    merges = parse_merges(path, model["merges"], vocab)
    ordinary = ordinary_entries(vocab, merges, {token.content for token in added})
    prefix, suffix = _parse_template(content.get("post_processor"), {token.id for token in added})
    has_pieces = bool(model.get("byte_fallback"))
    read_steps = byte_fallback.read_steps if has_pieces else byte_level.read_steps
    steps = read_steps(
        steps_of(content.get("normalizer"), "normalizer", "normalizers"),
        steps_of(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"),
        steps_of(content.get("decoder"), "decoder", "decoders"),
    )
    tokens = _pieces(vocab, ordinary) if has_pieces else {"tokens": parse_tokens(path, ordinary)}
    return Vocabulary(
        merges=tuple((ordinary[left], ordinary[right]) for left, right in merges),
        added=added,
        ignore_merges=bool(model.get("ignore_merges")),
        prefix=prefix,
        suffix=suffix,
        bos=bos,
        eos=eos,
        **tokens,
        **steps,
    )


def _pieces(vocab: Mapping[str, int], ordinary: Mapping[str, int]) -> dict[str, Any]:
    return {"tokens": byte_fallback.read_pieces(ordinary), "byte_tokens": byte_fallback.read_byte_tokens(vocab)}


def _check_model(model: dict[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE":
        raise TokenizerError(f"model.type is {short_repr(model['type'])}; only BPE is supported")
    # unk_token is ignored: text with bytes that have no token is refused.
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise TokenizerError(f"model.{key} is {short_repr(model[key])}; only BPE without it is supported")
    if model.get("byte_fallback") and model.get("ignore_merges"):
        raise TokenizerError("model.ignore_merges is true; with byte_fallback, it is not supported")


def _parse_added(entries: Any, vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    if not isinstance(entries, list):
        raise TokenizerError("added_tokens must be a list")
    tokens = []
    for number, entry in enumerate(entries):
        where = f"added_tokens[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise TokenizerError(f"{where} must be an object with a content")
        content, token_id = entry["content"], entry.get("id")
        if type(token_id) is not int or token_id < 0:
            found = short_repr(token_id)
            raise TokenizerError(f"{where} {short_repr(content)} has the id {found}, not a whole number >= 0")
        if entry.get("single_word"):
            raise TokenizerError(f"{where} {short_repr(content)} is single_word; that is not supported")
        if vocab.get(content, token_id) != token_id:
            raise TokenizerError(
                f"{where} {short_repr(content)} has the id {short_repr(token_id)}, but the id {vocab[content]} in the "
                "vocabulary"
            )
        tokens.append(AddedToken(token_id, content, **{flag: bool(entry.get(flag)) for flag in _FLAGS}))
    return tuple(sorted(tokens, key=lambda token: token.id))


def _parse_template(post_processor: Any, added_ids: set[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a TemplateProcessing puts before and after a text."""
    steps = steps_of(post_processor, "post_processor", "processors")
    # ByteLevel here only trims offsets.
    templates = [step for step in steps if step["type"] != "ByteLevel"]
    if not templates:
        return (), ()
    if len(templates) > 1 or templates[0]["type"] != "TemplateProcessing":
        raise TokenizerError(
            f"post_processor is {names_of(steps)}; only ByteLevel and TemplateProcessing are supported"
        )
    before: list[int] = []
    after: list[int] = []
    ids = before
    try:
        for item in templates[0]["single"]:
            if "Sequence" in item:
                ids = after
            else:
                ids += templates[0]["special_tokens"][item["SpecialToken"]["id"]]["ids"]
    except (KeyError, TypeError):
        raise TokenizerError("post_processor TemplateProcessing is damaged") from None
    for token_id in before + after:
        if type(token_id) is not int or token_id not in added_ids:
            raise TokenizerError(
                f"post_processor TemplateProcessing uses the id {token_id}, which is not an added token"
            )
    return tuple(before), tuple(after)


def _without_model(content: dict[str, Any]) -> str:
    """What a file without a model is, and what to do."""
    if "tokenizer_class" in content or "model_type" in content:
        return "it is a configuration without tokens; open the tokenizer.json beside it"
    if {"vocab", "merges"} <= content.keys():
        return "it holds vocab and merges without a model; pass both to Tokenizer.from_vocab"
    kinds = set(map(type, content.values()))
    if kinds in ({int}, {str}):
        return (
            "it is a vocabulary without merges, such as GPT-2's vocab.json; name the two files vocab.json and "
            "merges.txt, or pass both: Tokenizer.from_files(vocab, merges)"
        )
    return "model must be an object; is this a tokenizer.json?"


def _to_hf(vocabulary: Vocabulary) -> dict[str, Any]:
    has_pieces = bool(vocabulary.byte_tokens)
    texts = byte_fallback.write_pieces(vocabulary) if has_pieces else printable_tokens(vocabulary.tokens)
    # Added tokens are also in the vocabulary, or Hugging Face would assign them the next free ids.
    texts |= {token.id: token.content for token in vocabulary.added}
    ordered = sorted(texts)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token.id,
                "content": token.content,
                "single_word": False,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": token.normalized,
                "special": token.special,
            }
            for token in vocabulary.added
        ],
        "post_processor": _post_processor(vocabulary),
        **(byte_fallback.write_steps if has_pieces else byte_level.write_steps)(vocabulary),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": has_pieces,
            "ignore_merges": vocabulary.ignore_merges,
            "vocab": dict(zip(map(texts.__getitem__, ordered), ordered, strict=True)),
            "merges": [(texts[left], texts[right]) for left, right in vocabulary.merges],
        },
    }


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any] | None:
    if not vocabulary.prefix and not vocabulary.suffix:
        return None
    names = {token.id: token.content for token in vocabulary.added}

    def items(ids: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[token_id], "type_id": 0}} for token_id in ids]

    def sequence(name: str) -> list[dict[str, Any]]:
        around = (*items(vocabulary.prefix), {"Sequence": {"id": name, "type_id": 0}}, *items(vocabulary.suffix))
        return list(around)

    used = dict.fromkeys((*vocabulary.prefix, *vocabulary.suffix))
    return {
        "type": "TemplateProcessing",
        "single": sequence("A"),
        "pair": sequence("A") + sequence("B"),
        "special_tokens": {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in used},
    }
