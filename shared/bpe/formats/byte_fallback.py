"""SentencePiece's BPE with byte fallback in Hugging Face's tokenizer.json, as Llama 2, TinyLlama and Mistral have it.

Spaces become U+2581, and one is put before the text, by either of two forms: a normalizer (Prepend and Replace), or the
pre-tokenizer Metaspace. Both are kept as what they do, see `Vocabulary`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.steps import Step
from shared.bpe.patterns.named import BEFORE_SPACES, WHOLE
from shared.bpe.piece_spelling import BYTE_PIECES, SPACE_MARK, from_piece, to_piece
from shared.bpe.vocabulary import Vocabulary
from shared.system.errors import short_repr

_TO_MARK: Step = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
_TO_SPACE: Step = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
_PREPEND: Step = {"type": "Prepend", "prepend": SPACE_MARK}
_STRIP: Step = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_JOIN: list[Step] = [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
# By `prefix_space` and `only_first`.
_SCHEMES = {(False, False): "never", (True, False): "always", (True, True): "first"}


def read_steps(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step], decoders: Sequence[Step]) -> dict[str, Any]:
    """The fields of `Vocabulary` that the steps of the three components give.

    Raises:
        TokenizerError: They do something that is not supported; shows them.
    """
    return {"strips_space": _read_strips_space(decoders), **_read_spaces([*normalizers], [*pre_tokenizers])}


def _read_spaces(normalizers: list[Step], pre_tokenizers: list[Step]) -> dict[str, Any]:
    if normalizers in ([_PREPEND, _TO_MARK], [_TO_MARK, _PREPEND], [_TO_MARK]) and not pre_tokenizers:
        return {"pattern": WHOLE, "prepended_space": len(normalizers) == 2}
    if len(pre_tokenizers) == 1 and not normalizers and pre_tokenizers[0]["type"] == "Metaspace":
        return _read_metaspace(pre_tokenizers[0])
    raise TokenizerError(
        f"normalizer is {short_repr(normalizers)} and pre_tokenizer {short_repr(pre_tokenizers)}; with byte_fallback, "
        "only Prepend and Replace of U+2581 without a pre_tokenizer, or Metaspace without a normalizer, is supported"
    )


def _read_metaspace(step: Step) -> dict[str, Any]:
    # Older files have add_prefix_space instead of a scheme.
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    fields = next((fields for fields, name in _SCHEMES.items() if name == scheme), None)
    if step.get("replacement") != SPACE_MARK or fields is None:
        raise TokenizerError(
            f"pre_tokenizer is {short_repr(step)}; only U+2581 with {', '.join(_SCHEMES.values())} is supported"
        )
    pattern = BEFORE_SPACES if step.get("split", True) else WHOLE
    return {"pattern": pattern, "prefix_space": fields[0], "only_first": fields[1]}


def _read_strips_space(decoders: Sequence[Step]) -> bool:
    """Whether a decoder omits the space at the beginning."""
    if [*decoders] not in (_JOIN, [*_JOIN, _STRIP]):
        raise TokenizerError(
            f"decoder is {short_repr([*decoders])}; with byte_fallback, only Replace of U+2581, ByteFallback, Fuse, "
            "and Strip of one space at the start is supported"
        )
    return len(decoders) > len(_JOIN)


def read_byte_tokens(vocab: Mapping[str, int]) -> tuple[int, ...]:
    """The ids of `<0x00>` to `<0xFF>`.

    Raises:
        TokenizerError: One is missing.
    """
    missing = [piece for piece in BYTE_PIECES if piece not in vocab]
    if missing:
        raise TokenizerError(f"model.byte_fallback needs a token for each byte; {missing[0]} is missing")
    return tuple(vocab[piece] for piece in BYTE_PIECES)


def read_pieces(ordinary: Mapping[str, int]) -> dict[int, bytes]:
    """The tokens of a vocabulary except those of bytes, by id."""
    return {token_id: from_piece(piece) for piece, token_id in ordinary.items() if piece not in BYTE_PIECES}


def write_pieces(vocabulary: Vocabulary) -> dict[int, str]:
    """The tokens as tokenizer.json spells them."""
    pieces = {token_id: to_piece(token) for token_id, token in vocabulary.tokens.items()}
    return pieces | dict(zip(vocabulary.byte_tokens, BYTE_PIECES, strict=True))


def write_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    """The normalizer, pre-tokenizer and decoder."""
    metaspace = None
    if not vocabulary.prepended_space:
        scheme = _SCHEMES[vocabulary.prefix_space, vocabulary.only_first]
        split = vocabulary.pattern == BEFORE_SPACES
        metaspace = {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": scheme, "split": split}
    normalizer = {"type": "Sequence", "normalizers": [_PREPEND, _TO_MARK]} if metaspace is None else None
    decoders = [*_JOIN, _STRIP] if vocabulary.strips_space else _JOIN
    return {
        "normalizer": normalizer,
        "pre_tokenizer": metaspace,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
