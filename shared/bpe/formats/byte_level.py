"""Byte-level BPE in Hugging Face's tokenizer.json: what becomes of text before it is merged, and after."""

from collections.abc import Sequence
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.steps import Step, names_of
from shared.bpe.patterns.named import PATTERNS, WHOLE, is_named, read_expression
from shared.bpe.vocabulary import Vocabulary
from shared.system.errors import short_repr

# Digits, without and with `individual_digits`, then GPT-2's pattern, for which the text ends before digits.
_DIGITS = [
    digits + r"""|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"""
    for digits in (r"\p{N}+", r"\p{N}")
]


def read_steps(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step], decoders: Sequence[Step]) -> dict[str, Any]:
    """The fields of `Vocabulary` that the steps of the three components give.

    Raises:
        TokenizerError: They do something that is not supported; names it.
    """
    _check_decoder(decoders)
    normalizer = _read_normalizer(normalizers)
    pattern, prefix_space = _read_pre_tokenizer(pre_tokenizers)
    return {
        "pattern": pattern,
        "nfc": normalizer == "NFC",
        "prefix_space": prefix_space,
        "prepended_space": normalizer == "Prepend",
    }


def write_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    """The normalizer, pre-tokenizer and decoder.

    Raises:
        TokenizerError: tokenizer.json has no form for them.
    """
    return {
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": _pre_tokenizer(vocabulary.pattern, prefix_space=vocabulary.prefix_space),
        "decoder": _byte_level(use_regex=True),
    }


def _check_decoder(steps: Sequence[Step]) -> None:
    if [step["type"] for step in steps] != ["ByteLevel"]:
        raise TokenizerError(f"decoder is {names_of(steps)}; only ByteLevel is supported")


def _read_normalizer(steps: Sequence[Step]) -> str:
    """The name of the normalizer, empty if there is none."""
    names = [step["type"] for step in steps]
    if names not in ([], ["NFC"], ["Prepend"]):
        raise TokenizerError(f"normalizer is {', '.join(names)}; only none, NFC or Prepend is supported")
    if names == ["Prepend"] and steps[0].get("prepend") != " ":
        raise TokenizerError(f"normalizer Prepend has {short_repr(steps[0].get('prepend'))}; only a space is supported")
    return names[0] if names else ""


def _read_pre_tokenizer(steps: Sequence[Step]) -> tuple[str, bool]:
    """The pattern, and whether a space is put before the text."""
    names = [step["type"] for step in steps]
    if names not in (["ByteLevel"], ["Split", "ByteLevel"], ["Digits", "ByteLevel"]):
        raise TokenizerError(
            f"pre_tokenizer is {names_of(steps)}; only ByteLevel, alone or after one Split or Digits, is supported"
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
            f"pre_tokenizer is {names_of(steps)} with use_regex {use_regex}; "
            "only Split without it, or Digits with it, is supported"
        )
    return (_DIGITS[bool(cut.get("individual_digits"))] if use_regex else _read_split(cut)), False


def _read_split(step: Step) -> str:
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or not isinstance(pattern.get("Regex"), str):
        raise TokenizerError(f"pre_tokenizer Split has the pattern {short_repr(pattern)}; only a Regex is supported")
    expression = read_expression(pattern["Regex"])
    # "Removed" with invert keeps only the matches: the same, if everything is matched.
    behavior, invert = step.get("behavior"), bool(step.get("invert"))
    if behavior != "Isolated" and not (behavior == "Removed" and invert and is_named(expression)):
        raise TokenizerError(
            f"pre_tokenizer Split has behavior {short_repr(behavior)} and invert {invert}; only 'Isolated' is "
            f"supported, and 'Removed' with invert for the patterns {', '.join(PATTERNS)}, which match every character"
        )
    return expression


def _normalizer(vocabulary: Vocabulary) -> Step | None:
    if vocabulary.nfc and vocabulary.prepended_space:
        raise TokenizerError("tokenizer.json cannot hold NFC with a space before every text")
    if vocabulary.prepended_space:
        return {"type": "Prepend", "prepend": " "}
    return {"type": "NFC"} if vocabulary.nfc else None


def _pre_tokenizer(pattern: str, *, prefix_space: bool) -> Step:
    if pattern in {PATTERNS["gpt2"], WHOLE}:
        return _byte_level(use_regex=pattern != WHOLE, prefix_space=prefix_space)
    if prefix_space:
        raise TokenizerError(f"tokenizer.json cannot hold the pattern {pattern!r} with a space before the text")
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool, prefix_space: bool = False) -> Step:
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": False, "use_regex": use_regex}
