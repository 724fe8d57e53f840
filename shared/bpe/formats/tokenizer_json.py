"""Hugging Face's tokenizer.json, for byte-level BPE and for SentencePiece's with byte fallback.

Anything in the file that would change ids in a way that this package does not support is refused by name. `truncation`
and `padding` are ignored: they shape batches, not tokens, and transformers sets them in every call.
"""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats import byte_fallback
from shared.bpe.formats.printable_entries import (
    ordinary_entries,
    parse_merges,
    parse_tokens,
    parse_vocab,
    printable_vocab,
)
from shared.bpe.formats.reading import read_json
from shared.bpe.formats.tokenizer_config import read_roles, to_config
from shared.bpe.patterns.named import PATTERNS, WHOLE, is_named, read_expression
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.errors import shown
from shared.system.files import to_json

# Digits, without and with `individual_digits`, then GPT-2's pattern, for which the text ends before digits.
_DIGITS = [
    digits + r"""|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"""
    for digits in (r"\p{N}+", r"\p{N}")
]
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


def files(vocabulary: Vocabulary) -> dict[str, str]:
    """What tokenizer.json and tokenizer_config.json contain, by their names."""
    return {"tokenizer.json": to_json(_to_hf(vocabulary)), "tokenizer_config.json": to_json(to_config(vocabulary))}


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
    fields = _pieces(content, vocab, ordinary) if has_pieces else _byte_level_of(path, content, ordinary)
    return Vocabulary(
        merges=tuple((ordinary[left], ordinary[right]) for left, right in merges),
        added=added,
        ignore_merges=bool(model.get("ignore_merges")),
        prefix=prefix,
        suffix=suffix,
        bos=bos,
        eos=eos,
        **fields,
    )


def _byte_level_of(path: Path, content: dict[str, Any], ordinary: Mapping[str, int]) -> dict[str, Any]:
    """The fields of `Vocabulary` in which byte-level BPE differs."""
    _check_decoder(content.get("decoder"))
    normalizer = _parse_normalizer(content.get("normalizer"))
    pattern, prefix_space = _parse_pre_tokenizer(content.get("pre_tokenizer"))
    return {
        "tokens": parse_tokens(path, ordinary),
        "pattern": pattern,
        "nfc": normalizer == "NFC",
        "prefix_space": prefix_space,
        "prepended_space": normalizer == "Prepend",
    }


def _pieces(content: dict[str, Any], vocab: Mapping[str, int], ordinary: Mapping[str, int]) -> dict[str, Any]:
    """The fields of `Vocabulary` in which SentencePiece's BPE differs."""
    normalizers = _steps(content.get("normalizer"), "normalizer", "normalizers")
    pre_tokenizers = _steps(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    return {
        "tokens": byte_fallback.read_pieces(ordinary),
        "byte_tokens": byte_fallback.read_byte_tokens(vocab),
        "strips_space": byte_fallback.read_strips_space(_steps(content.get("decoder"), "decoder", "decoders")),
        **byte_fallback.read_spaces(normalizers, pre_tokenizers)._asdict(),
    }


def _check_model(model: dict[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE":
        raise TokenizerError(f"model.type is {shown(model['type'])}; only BPE is supported")
    # unk_token is ignored: text with bytes that have no token is refused.
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise TokenizerError(f"model.{key} is {shown(model[key])}; only BPE without it is supported")
    if model.get("byte_fallback") and model.get("ignore_merges"):
        raise TokenizerError("model.ignore_merges is true; with byte_fallback, it is not supported")


def _check_decoder(decoder: Any) -> None:
    steps = _steps(decoder, "decoder", "decoders")
    if [step["type"] for step in steps] != ["ByteLevel"]:
        raise TokenizerError(f"decoder is {_names(steps)}; only ByteLevel is supported")


def _parse_normalizer(normalizer: Any) -> str:
    """The name of the normalizer, empty if there is none."""
    steps = _steps(normalizer, "normalizer", "normalizers")
    names = [step["type"] for step in steps]
    if names not in ([], ["NFC"], ["Prepend"]):
        raise TokenizerError(f"normalizer is {', '.join(names)}; only none, NFC or Prepend is supported")
    if names == ["Prepend"] and steps[0].get("prepend") != " ":
        raise TokenizerError(f"normalizer Prepend has {shown(steps[0].get('prepend'))}; only a space is supported")
    return names[0] if names else ""


def _parse_pre_tokenizer(pre_tokenizer: Any) -> tuple[str, bool]:
    """The pattern, and whether a space is put before the text."""
    steps = _steps(pre_tokenizer, "pre_tokenizer", "pretokenizers")
    names = [step["type"] for step in steps]
    if names not in (["ByteLevel"], ["Split", "ByteLevel"], ["Digits", "ByteLevel"]):
        raise TokenizerError(
            f"pre_tokenizer is {_names(steps)}; only ByteLevel, alone or after one Split or Digits, is supported"
        )
    cut, byte_level = steps[0], steps[-1]
    prefix_space = bool(byte_level.get("add_prefix_space", True))
    use_regex = bool(byte_level.get("use_regex", True))
    if names == ["ByteLevel"]:
        return (PATTERNS["gpt2"] if use_regex else WHOLE), prefix_space
    if prefix_space:
        raise TokenizerError(
            f"pre_tokenizer.add_prefix_space is true after {names[0]}, where it puts a space before every pretoken; "
            "it is supported for ByteLevel alone"
        )
    if use_regex != (names[0] == "Digits"):
        raise TokenizerError(
            f"pre_tokenizer is {_names(steps)} with use_regex {use_regex}; "
            "only Split without it, or Digits with it, is supported"
        )
    return (_DIGITS[bool(cut.get("individual_digits"))] if use_regex else _parse_split(cut)), False


def _parse_split(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or not isinstance(pattern.get("Regex"), str):
        raise TokenizerError(f"pre_tokenizer Split has the pattern {shown(pattern)}; only a Regex is supported")
    expression = read_expression(pattern["Regex"])
    # "Removed" with invert keeps only the matches: the same, if everything is matched.
    behavior, invert = step.get("behavior"), bool(step.get("invert"))
    if behavior != "Isolated" and not (behavior == "Removed" and invert and is_named(expression)):
        raise TokenizerError(
            f"pre_tokenizer Split has behavior {shown(behavior)} and invert {invert}; only 'Isolated' is supported, "
            f"and 'Removed' with invert for the patterns {', '.join(PATTERNS)}, which match every character"
        )
    return expression


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
            raise TokenizerError(f"{where} {shown(content)} has the id {shown(token_id)}, not a whole number >= 0")
        if entry.get("single_word"):
            raise TokenizerError(f"{where} {shown(content)} is single_word; that is not supported")
        if vocab.get(content, token_id) != token_id:
            raise TokenizerError(
                f"{where} {shown(content)} has the id {shown(token_id)}, but the id {vocab[content]} in the vocabulary"
            )
        tokens.append(AddedToken(token_id, content, **{flag: bool(entry.get(flag)) for flag in _FLAGS}))
    return tuple(sorted(tokens, key=lambda token: token.id))


def _parse_template(post_processor: Any, added_ids: set[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a TemplateProcessing puts before and after a text."""
    steps = _steps(post_processor, "post_processor", "processors")
    # ByteLevel here only trims offsets.
    templates = [step for step in steps if step["type"] != "ByteLevel"]
    if not templates:
        return (), ()
    if len(templates) > 1 or templates[0]["type"] != "TemplateProcessing":
        raise TokenizerError(f"post_processor is {_names(steps)}; only ByteLevel and TemplateProcessing are supported")
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


def _steps(component: Any, name: str, members: str) -> list[dict[str, Any]]:
    """A component as the list of its steps: a Sequence is flattened, null is empty."""
    if component is None:
        return []
    if isinstance(component, dict) and component.get("type") == "Sequence":
        parts = component.get(members)
        return [step for part in parts for step in _steps(part, name, members)] if isinstance(parts, list) else []
    if not isinstance(component, dict) or not isinstance(component.get("type"), str):
        raise TokenizerError(f"{name} must be an object with a type")
    return [component]


def _names(steps: list[dict[str, Any]]) -> str:
    return ", ".join(step["type"] for step in steps) or "missing"


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
    vocab = byte_fallback.write_vocab(vocabulary) if has_pieces else printable_vocab(vocabulary.tokens)
    texts = {token_id: text for text, token_id in vocab.items()}
    # Added tokens are also in the vocabulary, or Hugging Face would assign them the next free ids.
    vocab |= {token.content: token.id for token in vocabulary.added}
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
        **(byte_fallback.write_steps(vocabulary) if has_pieces else _byte_level_steps(vocabulary)),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": has_pieces,
            "ignore_merges": vocabulary.ignore_merges,
            "vocab": dict(sorted(vocab.items(), key=itemgetter(1))),
            "merges": [(texts[left], texts[right]) for left, right in vocabulary.merges],
        },
    }


def _byte_level_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": _pre_tokenizer(vocabulary.pattern, prefix_space=vocabulary.prefix_space),
        "decoder": _byte_level(use_regex=True),
    }


def _normalizer(vocabulary: Vocabulary) -> dict[str, Any] | None:
    if vocabulary.nfc and vocabulary.prepended_space:
        raise TokenizerError("tokenizer.json cannot hold NFC with a space before every text")
    if vocabulary.prepended_space:
        return {"type": "Prepend", "prepend": " "}
    return {"type": "NFC"} if vocabulary.nfc else None


def _pre_tokenizer(pattern: str, *, prefix_space: bool) -> dict[str, Any]:
    if pattern in {PATTERNS["gpt2"], WHOLE}:
        return _byte_level(use_regex=pattern != WHOLE, prefix_space=prefix_space)
    if prefix_space:
        raise TokenizerError(f"tokenizer.json cannot hold the pattern {pattern!r} with a space before the text")
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool, prefix_space: bool = False) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": False, "use_regex": use_regex}


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
