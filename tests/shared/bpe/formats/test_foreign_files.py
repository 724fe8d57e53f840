"""Files that people give for a tokenizer: the message says what they are and what to do."""

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TokenizerError

pytestmark = pytest.mark.case("D35")

VOCAB = {"a": 0, "b": 1}
RANKS = b"IQ== 0\nIg== 1\n"
# As SentencePiece writes its pieces: a message of the piece, a score and a type.
LLAMA2C = struct.pack("<IfI5sfI", 7, 0.0, 5, b"<unk>", 0.0, 5)
SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>\x15\x00\x00\x00\x00\x18\x03"


def a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"")
    return file.getvalue()


def by_ranks(path: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(path, pattern="gpt2", special_tokens={})


BINARY = [
    *((pickle.dumps(VOCAB, protocol), "Python pickle.*Tokenizer.from_vocab") for protocol in (2, 3, 4, 5)),
    (gzip.compress(b"{}", mtime=0), "is compressed; decompress it"),
    (a_zip(), "is a zip archive"),
    (b"GGUF\x03\0\0\0", "GGUF.*tokenizer.json"),
    (json.dumps(VOCAB).encode("utf-16"), "UTF-16; write it as UTF-8"),
    (json.dumps(VOCAB).encode("utf-8-sig"), "byte-order mark; write it as UTF-8 without"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
    (b"<!DOCTYPE html>\n<html>", "a web page"),
    (b"\n<html lang=en>", "a web page"),
]


@pytest.mark.parametrize("read", [Tokenizer.from_files, by_ranks])
@pytest.mark.parametrize(("data", "message"), BINARY)
def test_known_files_are_named(read: Callable[[Path], Tokenizer], data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match=rf"file.*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (RANKS, "tiktoken rank file.*Tokenizer.from_tiktoken"),
        (b"#version: 0.2\na b\n", r"list of merges.*Tokenizer.from_files\(vocab, merges\)"),
        (b"a b\nab c\n", "list of merges"),
        (b"{]", "is not JSON: line 1, column 2"),
        (b'{"model": {\n', "is not JSON: line 2"),
        (b'["a", 1,\n', "is not JSON: line"),
        (json.dumps(VOCAB).encode(), r"vocabulary without merges.*merges.txt.*Tokenizer.from_files\(vocab, merges\)"),
        (b'{"0": "a", "1": "b"}', "vocabulary without merges"),
        (b'{"vocab": {"a": 0}, "merges": []}', "Tokenizer.from_vocab"),
        (b'{"tokenizer_class": "GPT2Tokenizer"}', "configuration.*tokenizer.json beside it"),
        (b'{"model_type": "llama"}', "configuration.*tokenizer.json beside it"),
        (b"{}", "model must be an object; is this a tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_json_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match=rf"file.*{message}"):
        Tokenizer.from_files(path)


def test_json_is_no_rank_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    with pytest.raises(TokenizerError, match=r"file is JSON.*Tokenizer\.from_files"):
        by_ranks(tmp_path / "file")


def test_a_vocabulary_without_its_merges_says_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(VOCAB))
    with pytest.raises(TokenizerError, match=r"merges\.txt cannot be read.*vocab\.json needs its merges there"):
        Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tokenizer.model", RANKS, "; tokenizer.model is a tiktoken rank file"),
        ("vocab.pkl", pickle.dumps(VOCAB), "; vocab.pkl is a Python pickle"),
        ("other.txt", RANKS, "nor a vocab.json$"),
    ],
)
def test_a_folder_without_a_tokenizer_says_what_is_there_instead(
    name: str, data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TokenizerError, match=f"has neither.*{message}"):
        Tokenizer.from_files(tmp_path)


def test_merges_may_use_an_added_token(tmp_path: Path) -> None:
    # Learned from text that spells the unknown token, as BpeTrainer does; it was said that the vocabulary lacks it.
    vocab = {text: token_id for token_id, text in enumerate(["<", "u", ">", "<u", "<u>"])}
    added = {"id": 4, "content": "<u>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    model = {"type": "BPE", "unk_token": "<u>", "vocab": vocab, "merges": ["< u", "<u >"]}
    content = {"added_tokens": [added], "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    ours = Tokenizer.from_files(tmp_path)
    assert ours.encode("<<u>") == ours.encode("<<u>", allowed_special="all") == [0, 4]
