import itertools
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from shared.bpe import Tokenizer, TokenizerError, train_bpe
from shared.system.thread_pool import in_order

END = "<|endoftext|>"
BYTES = {byte: bytes([byte]) for byte in range(256)}

# B20, B21 and the issue: what normalization, prefix spaces or text-mode reading would alter.
FRAGILE = [
    "", " ", "  a", "a  ", "\ta", "\na", "a\rb", "a\r\nb\rc\n", "a\x00b", "\ufeffhello \ufeff", "e\u0301", "\u00e9",
    "n\u0303o", "\u1112\u1161\u11ab", "\ufb01", "\u0915\u094d\u0937", "\U0001f44d\U0001f3fd", "\u2028\x85",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u0378\U000e0080\U0010ffff",
]  # fmt: skip


def test_gpt2_equals_tiktoken_on_real_text(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding, real_texts: dict[str, str]
) -> None:
    for name, text in real_texts.items():
        ids = gpt2.encode(text)
        assert ids == tiktoken_gpt2.encode_ordinary(text), name
        assert gpt2.decode(ids, errors="strict") == text, name


@pytest.mark.slow
def test_gpt2_equals_tiktoken_on_all_real_text(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding, data_dir: Path
) -> None:
    files = [*data_dir.glob("lang/*.txt"), *data_dir.glob("owt/*.txt"), *data_dir.glob("tiny*.txt")]
    assert len(files) >= 12
    for path in files:
        text = path.read_bytes().decode()
        ids = gpt2.encode(text)
        assert ids == tiktoken_gpt2.encode_ordinary(text), path
        assert gpt2.decode(ids, errors="strict") == text, path


@pytest.mark.extended
def test_qwen_equals_hugging_face_on_real_text(qwen: Tokenizer, data_dir: Path, real_texts: dict[str, str]) -> None:
    theirs = HuggingFaceTokenizer.from_file(str(data_dir / "tokenizers/qwen/qwen3_tokenizer.json"))
    # Decomposed, so that NFC has something to do; Hugging Face always recognizes control tokens.
    texts = [unicodedata.normalize("NFD", text[:40_000]) for text in real_texts.values()]
    for text in [*texts, "<think>a\u0301</think> <|im_start|>b"]:
        assert qwen.encode(text, allowed_special="all") == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", FRAGILE)
def test_B20_B21_text_round_trips(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text), errors="strict") == text


@settings(deadline=None)
@given(st.text())
def test_any_text_round_trips(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text), errors="strict") == text


def test_B20_B21_no_normalization_and_no_prefix_space(small: Tokenizer) -> None:
    assert small.encode("") == []
    assert small.encode("e\u0301") != small.encode("\u00e9")
    assert small.encode(" a") != small.encode("a")
    spelt = small.decode(small.encode(" <|user|> a", allowed_special="all"))
    assert spelt == " <|user|> a"


def test_B17_control_tokens_only_where_allowed(small: Tokenizer) -> None:
    text, end = f"hi {END} bye", small.special_tokens[END]
    assert end not in small.encode(text)
    assert small.decode(small.encode(text)) == text
    for allowed in ([END], "all"):
        assert small.encode(text, allowed_special=allowed).count(end) == 1
    with pytest.raises(TokenizerError, match="'<no>'"):
        small.encode(text, allowed_special=["<no>"])
    with pytest.raises(TokenizerError, match="list"):
        small.encode(text, allowed_special=END)


@pytest.mark.parametrize("specials", list(itertools.permutations(["<|a|>", "<|a|><|b|>", "<|b|>"])))
def test_B16_longest_special_wins_in_every_order(specials: tuple[str, ...]) -> None:
    tokenizer = train_bpe([], 259, special_tokens=specials).tokenizer
    a, ab = tokenizer.special_tokens["<|a|>"], tokenizer.special_tokens["<|a|><|b|>"]
    expected = {
        "<|a|><|b|>": [ab],
        "<|a|><|a|><|b|>": [a, ab],
        "x<|a|>y": [120, a, 121],
        "<|a|": list(b"<|a|"),
        "<|a|><|b": [a, *b"<|b"],
    }
    assert {text: tokenizer.encode(text, allowed_special="all") for text in expected} == expected


@pytest.mark.parametrize("character", ["^", " "])
@pytest.mark.parametrize("length", [1 << 16, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_B19_a_mebibyte_of_one_character_is_encoded(gpt2: Tokenizer, character: str, length: int) -> None:
    text = character * length
    batch = gpt2.encode_batch(["a", "b", text, "c", "d"])
    assert [gpt2.decode(ids) for ids in batch] == ["a", "b", text, "c", "d"]


def test_batch_names_the_text_that_is_wrong(small: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"text 2: .*U\+D800, at character 1"):
        small.encode_batch(["a", "b", "c\ud800"])


def test_B22_a_character_cut_between_ids_decodes_to_a_replacement(small: Tokenizer) -> None:
    ids = small.encode("\U0001f600")
    assert len(ids) > 1
    for length in range(1, len(ids)):
        assert "\ufffd" in small.decode(ids[:length])
        with pytest.raises(TokenizerError, match="byte 0 of"):
            small.decode(ids[:length], errors="strict")
    with pytest.raises(TokenizerError, match="errors"):
        small.decode(ids, errors="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 400, 4294967296, 9223372036854775808, True, "7", 1.0, None])
def test_B23_what_is_no_id_is_refused_by_index_and_value(small: Tokenizer, wrong: object) -> None:
    with pytest.raises(TokenizerError, match=f"token 2 is {wrong!r}"):
        small.decode([97, 98, wrong])  # type: ignore[list-item]
    with pytest.raises(TokenizerError):
        small.token_bytes(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("length", [0, 1, 256, 257])
def test_ids_may_be_an_array(small: Tokenizer, dtype: str, length: int) -> None:
    ids = [*small.special_tokens.values(), *range(399)][:length]
    for skip in (False, True):
        expected = small.decode(ids, skip_special_tokens=skip)
        assert small.decode(np.array(ids, dtype), skip_special_tokens=skip) == expected
    with pytest.raises(TokenizerError, match=f"token {length} is 400, "):
        small.decode(np.array([*ids, 400], dtype))


@pytest.mark.parametrize(
    ("wrong", "dtype", "what"),
    [
        ([97.0, 98.5], None, "token 0 is "),
        ([True], None, "token 0 is "),
        (["a"], None, "token 0 is "),
        ([[97], [98]], None, "token 0 is "),
        ([97, -1], None, "token 1 is -1"),
        ([97, 98], "timedelta64[ns]", "token 0 is "),
        ([97, 98], "datetime64[ns]", "token 0 is "),
    ],
)
def test_an_array_of_what_is_no_id_is_refused(small: Tokenizer, wrong: list[Any], dtype: str | None, what: str) -> None:
    with pytest.raises(TokenizerError, match=what):
        small.decode(np.array(wrong, dtype))


def test_B25_nul_cuts_nothing(small: Tokenizer) -> None:
    assert b"".join(map(small.token_bytes, small.encode("ab\u0000cd"))) == b"ab\x00cd"


def test_B28_every_byte_sequence_has_ids(small: Tokenizer) -> None:
    # Text is what `encode` takes; bytes that are no text have ids all the same.
    data = bytes(range(256)) + b"ok \xff ok ok"
    assert small.decode_bytes(list(data)) == data


@pytest.mark.parametrize("name", ["small", "gpt2", "qwen"])
def test_pieces_are_the_tokens_with_their_places(name: str, request: pytest.FixtureRequest, sample: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    text = f"a\u0301\u0323 {sample}{END}\U0001f600\u1112\u1161\u11ab x"
    pieces = tokenizer.encode_with_offsets(text, allowed_special=[END])
    assert [piece.id for piece in pieces] == tokenizer.encode(text, allowed_special=[END])
    covered = 0
    for piece in pieces:
        assert piece.bytes == tokenizer.token_bytes(piece.id)
        assert piece.start <= covered <= piece.end
        covered = piece.end
        assert piece.special == (text[piece.start : piece.end] == END)
        # The token's bytes lie within the characters that it claims.
        claimed = text[piece.start : piece.end]
        if tokenizer.vocabulary.nfc:
            claimed = unicodedata.normalize("NFC", claimed)
        assert piece.bytes in claimed.encode()
    assert covered == len(text)


@pytest.mark.case("D27")
@pytest.mark.parametrize("pattern", [r"\w+(?=x)|\w", r"(?<=x)\w+|\w", r"\bab|\w", r"\w+(?!b)|\w", "gpt2"])
def test_a_pattern_that_looks_around_gives_the_pieces_the_ids_of_the_text(pattern: str) -> None:
    tokenizer = Tokenizer.from_vocab({**BYTES, 256: b"ab"}, [(b"a", b"b")], [END], pattern=pattern)
    for text in ["abx", "xab", "ab ab", "aabb", f"ab{END}x\u00e9abx{END}{END}", ""]:
        pieces = tokenizer.encode_with_offsets(text, allowed_special="all")
        assert [piece.id for piece in pieces] == tokenizer.encode(text, allowed_special="all")
        assert [text[piece.start : piece.end] for piece in pieces if piece.special] == [END] * text.count(END)
    ahead = Tokenizer.from_vocab({**BYTES, 256: b"ab"}, [(b"a", b"b")], pattern=r"\w+(?=x)|\w")
    assert [(p.id, p.start, p.end) for p in ahead.encode_with_offsets("abx")] == [(256, 0, 2), (120, 2, 3)]


def test_pieces_of_a_text_around_which_ids_are_put(small: Tokenizer) -> None:
    pieces = small.encode_with_offsets(f"a{END}", allowed_special="all")
    assert [(p.id, p.start, p.end, p.special) for p in pieces] == [
        (97, 0, 1, False),
        (small.end_of_text_id, 1, 14, True),
    ]


def test_skip_special_tokens_leaves_control_tokens_out(small: Tokenizer) -> None:
    ids = small.encode(f"a{END}b", allowed_special="all")
    assert small.decode(ids) == f"a{END}b"
    assert small.decode(ids, skip_special_tokens=True) == "ab"


def test_many_threads_share_one_tokenizer(small: Tokenizer, sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128), (16, 128)))
    expected = small.encode(sample)
    wrong = []

    def work() -> None:
        wrong.extend(ids for ids in (small.encode(sample) for _ in range(30)) if ids != expected)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_long_text_is_cut_for_threads_without_a_trace(
    small: Tokenizer, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sample * 40
    expected = small.encode(text)
    monkeypatch.setattr("shared.bpe.encoding.text_encoder._LONG", 500)
    monkeypatch.setattr("shared.bpe.encoding.encoder._SHARE", 1000)
    assert small.encode(text) == expected
    with pytest.raises(TokenizerError, match=f"at character {len(text) - 1}"):
        small.encode(text[:-1] + "\ud800")


def test_a_long_text_takes_no_more_threads_than_it_may(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "low lower, lowest " * 300_000
    used = []

    def count(work: Iterator[Any], threads: int) -> Iterator[Any]:
        used.append(threads)
        return in_order(work, threads)

    monkeypatch.setattr("shared.bpe.encoding.encoder.available_processors", lambda: 3)
    monkeypatch.setattr("shared.bpe.encoding.encoder.in_order", count)
    expected = small.encode(text)
    for most in (1, 2, 9):
        assert small.encode_to_numpy(text, max_threads=most).tolist() == expected
    assert used == [3, 1, 2, 3]
