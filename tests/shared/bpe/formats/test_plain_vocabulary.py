"""Vocabularies as every implementation of the classic assignment has them: ids and bytes, pairs of bytes, specials."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from shared.bpe import Tokenizer, TokenizerError, train_bpe
from shared.bpe.byte_alphabet import to_printable

pytestmark = pytest.mark.case("D36")

END = "<|endoftext|>"
BYTES = {byte: bytes([byte]) for byte in range(256)}
FORMS: list[Callable[[dict[int, bytes]], dict[Any, Any]]] = [
    lambda vocab: vocab,
    lambda vocab: {token: token_id for token_id, token in vocab.items()},
    lambda vocab: {to_printable(token): token_id for token_id, token in vocab.items()},
    lambda vocab: {token_id: to_printable(token) for token_id, token in vocab.items()},
    lambda vocab: {np.int64(token_id): token for token_id, token in vocab.items()},
    lambda vocab: {str(token_id): to_printable(token) for token_id, token in vocab.items()},
]


def gpt2_files(data_dir: Path, end: str) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """GPT-2's files, read without our readers; characters to bytes as in tiktoken's reader of them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    to_byte = {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
    vocab = json.loads((data_dir / "tokenizers/gpt2/vocab.json").read_text("utf-8"))
    tokens = {i: end.encode() if text == END else bytes(map(to_byte.__getitem__, text)) for text, i in vocab.items()}
    lines = (data_dir / "tokenizers/gpt2/merges.txt").read_text("utf-8").splitlines()
    pairs = [tuple(bytes(map(to_byte.__getitem__, part)) for part in line.split(" ")) for line in lines]
    return tokens, pairs  # type: ignore[return-value]


@pytest.mark.parametrize("special_tokens", [[END], ["<|new|>", END], None])
def test_gpt2_equals_tiktoken(
    special_tokens: list[str] | None,
    data_dir: Path,
    gpt2: Tokenizer,
    tiktoken_gpt2: tiktoken.Encoding,
    real_texts: dict[str, str],
    tmp_path: Path,
) -> None:
    vocab, merges = gpt2_files(data_dir, END)
    ours = Tokenizer.from_vocab(vocab, merges, special_tokens)
    assert {i: ours.tokens[i] for i in vocab} == vocab
    text = "".join(part[:20_000] for part in real_texts.values())
    assert ours.encode(text) == tiktoken_gpt2.encode_ordinary(text)
    if special_tokens is None:
        assert ours.special_tokens == {}
        return
    assert ours.end_of_text_id == 50256
    marked = f"{text[:1000]}{END}a{END}{END}"
    assert ours.encode(marked, allowed_special=[END]) == tiktoken_gpt2.encode(marked, allowed_special={END})
    if len(special_tokens) == 1:
        assert ours.fingerprint == gpt2.fingerprint
    else:
        assert ours.special_tokens["<|new|>"] == 50257
    ours.save(tmp_path)
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(f"{text}<|new|>{END}").ids == ours.encode(f"{text}<|new|>{END}", allowed_special="all")


def test_the_vocabulary_of_the_assignment(data_dir: Path) -> None:
    # Its reference files, whose special token comes first.
    vocab = json.loads((data_dir / "cs336/train-bpe-reference-vocab.json").read_text("utf-8"))
    merges = (data_dir / "cs336/train-bpe-reference-merges.txt").read_text("utf-8").splitlines()
    ours = Tokenizer.from_vocab(vocab, merges, [END])
    text = (data_dir / "cs336/tinystories_sample.txt").read_text("utf-8")
    learned = train_bpe([(data_dir / "cs336/corpus.en").read_text("utf-8")], 500, special_tokens=[END]).tokenizer
    ids = ours.encode(text, allowed_special="all")
    assert [ours.tokens[i] for i in ids] == [learned.tokens[i] for i in learned.encode(text, allowed_special="all")]
    assert ours.end_of_text_id == 0
    assert ours.decode(ids) == text


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_tokenizer(form: Callable[[dict[int, bytes]], dict[Any, Any]]) -> None:
    # Ids in no order, with holes, and not those of the bytes.
    vocab = {7 * (255 - byte): token for byte, token in BYTES.items()} | {5: b"\xc3\xa9", 4: b" \xc3", 3: b"<s>"}
    merges = [(b"\xc3", b"\xa9"), (b" ", b"\xc3")]
    ours = Tokenizer.from_vocab(form(vocab), merges, ["<s>", "<t>", "<u>"])
    assert {**ours.tokens} == vocab | {1786: b"<t>", 1787: b"<u>"}
    assert ours.special_tokens == {"<s>": 3, "<t>": 1786, "<u>": 1787}
    assert ours.encode("é é<s>", allowed_special="all") == [5, 7 * (255 - 32), 5, 3]
    for others in (["Ã ©", "Ġ Ã"], [["Ã", "©"], ["Ġ", "Ã"]]):
        assert Tokenizer.from_vocab(form(vocab), others, ["<s>", "<t>", "<u>"]).fingerprint == ours.fingerprint


def test_what_learning_gives_makes_the_same_tokenizer(small: Tokenizer) -> None:
    tokens = small.vocabulary.tokens
    merges = [(tokens[left], tokens[right]) for left, right in small.vocabulary.merges]
    for vocab in (tokens, small.tokens):
        again = Tokenizer.from_vocab(vocab, merges, small.special_tokens, small.pattern)
        assert again.fingerprint == small.fingerprint


@pytest.mark.parametrize(
    ("vocab", "merges", "special_tokens", "message"),
    [
        (BYTES, [(b"a", b"b")], None, "merges: merge 0, .* needs the token 'ab', which is missing in the vocabulary"),
        (BYTES, [(b"a",)], None, "merges: merge 0 must be two tokens"),
        (BYTES, [3], None, "merges: merge 0 must be two tokens"),
        (BYTES | {256: b"a"}, [], None, "vocab: the ids 97 and 256 are both given to 'a'"),
        (BYTES | {-1: b"ab"}, [], None, "vocab: the id of 'ab' is '-1'"),
        ({"a": 0, "b": 1.5}, [], None, "vocab: the id of 'b' is 1.5"),
        ({"0": "a", "01": "b"}, [], None, "vocab: the id of 'b' is '01'"),
        ({"9" * 5000: "a"}, [], None, "vocab: the id of 'a' is '9999"),
        ({"a": "b"}, [], None, "vocab: the id of 'b' is 'a'"),
        ({None: "a"}, [], None, "vocab: None is neither a token nor an id"),
        ({1.5: "a"}, [], None, "vocab: 1.5 is neither a token nor an id"),
        ({True: "a"}, [], None, "vocab: True is neither a token nor an id"),
        ({}, [], None, "no tokens"),
        ({0: "a b"}, [], None, "byte-level alphabet"),
        (BYTES, [], ["<s>", "<s>"], "'<s>' appears twice"),
        (BYTES, [], [""], "is empty"),
    ],
)
def test_parts_that_do_not_fit_are_refused(vocab: Any, merges: Any, special_tokens: Any, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_vocab(vocab, merges, special_tokens)


@pytest.mark.parametrize(
    ("vocab", "merges"),
    [
        ({"a" * 100_000: -1}, []),
        ({"9" * 100_000: "a"}, []),
        ({"0": "a" * 100_000, "1": "a" * 100_000}, []),
        (BYTES, ["a" * 100_000]),
        (BYTES, [["a" * 100_000, "b"]]),
    ],
)
def test_messages_show_little_of_a_long_entry(vocab: Any, merges: Any) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_vocab(vocab, merges)
    assert len(str(caught.value)) < 500


def test_a_file_may_hold_tokens_by_id(tmp_path: Path) -> None:
    content = {str(byte): to_printable(token) for byte, token in BYTES.items()} | {"256": "ab", "257": END}
    (tmp_path / "vocab.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("a b\n")
    tokenizer = Tokenizer.from_files(tmp_path)
    assert tokenizer.encode(f"cab{END}", allowed_special="all") == [99, 256, 257]
