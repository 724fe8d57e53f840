import base64
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer as HuggingFaceTokenizer

from shared.bpe import Tokenizer, TokenizerError, train_bpe

BYTES = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]


def line(token: bytes, rank: int | str) -> str:
    return f"{base64.b64encode(token).decode()} {rank}"


def read(path: Path, text: str) -> Tokenizer:
    path.write_bytes(text.encode())
    return Tokenizer.from_tiktoken(path, pattern="gpt2", special_tokens={"<|e|>": 300})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_B98_blank_lines_and_crlf_are_fine(tmp_path: Path, end: str) -> None:
    tokenizer = read(tmp_path / "ranks", end.join([*BYTES, line(b"ab", 256), ""]))
    assert tokenizer.encode("abab<|e|>", allowed_special="all") == [256, 256, 300]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("YWI=", "line 257: expected"),
        ("YWI= 256 1", "line 257: expected"),
        ("YWI= x", "line 257: expected"),
        ("YWI= -1", "line 257: expected"),
        ("!!! 256", "line 257: '!!!' is not base64"),
        ("YWI=YWI= 256", "line 257: .* is not base64"),
        ("YWI= 5", "line 257: the rank 5 was already given in line 6"),
        ("YQ== 256", "line 257: the token b'a' was already given in line 98"),
        ("<!DOCTYPE html>", "line 257"),
        ("version https://git-lfs.github.com/spec/v1", "line 257"),
        ("YWI= 300", "300"),
    ],
)
def test_B98_malformed_lines_are_refused_by_number(tmp_path: Path, extra: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path / "ranks", "\n".join([*BYTES, extra]))


def test_B98_a_missing_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="1 of the 256 bytes have no token, the first is 0x09"):
        read(tmp_path / "ranks", "\n".join(BYTES[:9] + BYTES[10:]))


@pytest.mark.case("D27")
def test_a_pattern_that_tiktoken_reads_in_its_own_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("\n".join(BYTES), encoding="utf-8")
    assert Tokenizer.from_tiktoken(path, pattern=r"\p{L}+|\P{L}", special_tokens={}).encode("ab ") == [*b"ab "]
    with pytest.raises(TokenizerError, match=r"ranks: the pattern .* has another meaning to tiktoken: \^"):
        Tokenizer.from_tiktoken(path, pattern="^a|.", special_tokens={})


def test_a_token_without_parts_is_reached_only_as_a_whole_piece(tmp_path: Path) -> None:
    # As in tiktoken, which looks a piece up before it merges.
    path = tmp_path / "ranks"
    ours = read(path, "\n".join([*BYTES, line(b"abc", 256)]))
    theirs = tiktoken.Encoding(
        "x", pat_str=ours.pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    for text in ("abc", " abc", "abcabc", "abc abc."):
        assert ours.encode(text) == theirs.encode_ordinary(text)


def test_B99_to_tiktoken_and_hugging_face_and_back(tmp_path: Path) -> None:
    corpus = "  x\n\n  y = 1\n\nif  a:\n\n    the cat and the hat said that they had been there before\n\n" * 20
    native = train_bpe([corpus], 300, special_tokens=["<|e|>", "<|f|>"], pattern="cl100k").tokenizer
    assert {b"  ", b"\n\n"} <= set(native.tokens.values())
    path = tmp_path / "ranks.tiktoken"
    native.to_tiktoken(path)
    ranks = load_tiktoken_bpe(str(path))
    assert b"<|e|>" not in ranks
    sidecar = json.loads(path.with_name("ranks.tiktoken.json").read_text(encoding="utf-8"))
    assert sidecar == {"pattern": native.pattern, "special_tokens": dict(native.special_tokens)}
    again = Tokenizer.from_tiktoken(path, **sidecar)
    theirs = tiktoken.Encoding(
        "x", pat_str=sidecar["pattern"], mergeable_ranks=ranks, special_tokens=sidecar["special_tokens"]
    )
    native.save(tmp_path)
    hugging_face = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    random_ = random.Random(0)
    for _ in range(2000):
        text = "".join(random_.choices([*"  \n\nabcdehtx1.'é字", "the", "<|e|>"], k=20))
        ids = native.encode(text, allowed_special="all")
        assert ids == again.encode(text, allowed_special="all")
        assert ids == theirs.encode(text, allowed_special="all")
        assert ids == hugging_face.encode(text).ids


@pytest.mark.case("D28")
def test_B99_what_a_rank_file_cannot_hold_is_refused(qwen: Tokenizer, gpt2: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="<tool_call>"):
        qwen.to_tiktoken(tmp_path / "qwen")
    gpt2.to_tiktoken(tmp_path / "gpt2")
    for pattern, message in (
        ("cl100k", "'cl100k', which would be read as a name"),
        (r"\w+|\W", r"has another meaning to tiktoken: \w"),
        ("a{1,3}+|.", "has another meaning to tiktoken: {1,3}+"),
    ):
        with pytest.raises(TokenizerError, match=re.escape(message)):
            Tokenizer(replace(gpt2.vocabulary, pattern=pattern)).to_tiktoken(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "gpt2.json"]
