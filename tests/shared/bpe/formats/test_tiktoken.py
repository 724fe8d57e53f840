import base64
import importlib.util
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer as HuggingFaceTokenizer

from shared.bpe import PATTERNS, Tokenizer, TokenizerError, train_bpe
from shared.bpe.byte_alphabet import from_printable

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
        ("YWI= " + "9" * 5000, "line 257: expected"),
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


@pytest.mark.parametrize("token_id", [-1, "300", True, 1.5, 10**12])
def test_the_id_of_a_special_token_is_checked(token_id: object, tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("\n".join(BYTES))
    with pytest.raises(TokenizerError, match=str(token_id)):
        Tokenizer.from_tiktoken(tmp_path / "ranks", pattern="gpt2", special_tokens={"<e>": token_id})  # type: ignore[dict-item]


def test_B98_a_missing_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="1 of the 256 bytes have no token, the first is 0x09"):
        read(tmp_path / "ranks", "\n".join(BYTES[:9] + BYTES[10:]))


@pytest.mark.case("D27")
def test_a_pattern_that_tiktoken_reads_in_its_own_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("\n".join(BYTES), encoding="utf-8")
    assert Tokenizer.from_tiktoken(path, pattern=r"\p{L}+|\P{L}", special_tokens={}).encode("ab ") == [*b"ab "]
    with pytest.raises(TokenizerError, match=r"ranks: the pattern .* means something else to tiktoken: \^"):
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


PIECE = st.binary(min_size=2, max_size=7).map(lambda data: bytes(b"abc"[byte % 3] for byte in data))


@pytest.mark.extended
@pytest.mark.case("D26")
@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(PIECE, max_size=40, unique=True), texts=st.lists(st.text("abc ", max_size=60), max_size=20))
def test_any_ranks_give_the_ids_of_tiktoken_and_of_hugging_face(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[bytes], texts: list[str]
) -> None:
    # Tokens in any order of rank, so that they have several splits, and parts that come after them.
    folder = tmp_path_factory.mktemp("ranks")
    path = folder / "ranks"
    ours = read(path, "\n".join([*BYTES, *(line(token, 1000 + rank) for rank, token in enumerate(tokens))]))
    theirs = tiktoken.Encoding(
        "x", pat_str=ours.pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    ours.save(folder)
    hugging_face = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*texts, *(token.decode() * 3 for token in tokens)]:
        assert ours.encode(text) == theirs.encode_ordinary(text) == hugging_face.encode(text).ids
    ours.to_tiktoken(folder / "again")
    assert load_tiktoken_bpe(str(folder / "again")) == load_tiktoken_bpe(str(path))


@pytest.mark.case("D26")
def test_a_token_whose_parts_have_higher_ranks_is_merged(tmp_path: Path) -> None:
    # tiktoken joins b and c as rank 301, for want of a lower one, and then finds that abc has the rank 300.
    ours = read(tmp_path / "ranks", "\n".join([*BYTES, line(b"abc", 302), line(b"bc", 303)]))
    assert ours.encode("xabcx") == [120, 302, 120]
    assert [(ours.tokens[a], ours.tokens[b]) for a, b in ours.vocabulary.merges] == [(b"a", b"bc"), (b"b", b"c")]


@pytest.mark.case("D26")
def test_what_only_a_whole_piece_gives_is_no_rank_file(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    vocabulary = read(path, "\n".join([*BYTES, line(b"abc", 256)])).vocabulary
    Tokenizer(vocabulary).to_tiktoken(path)
    with pytest.raises(TokenizerError, match="no merge gives the token b'abc'"):
        Tokenizer(replace(vocabulary, ignore_merges=False)).to_tiktoken(path)


@pytest.mark.extended
@pytest.mark.case("D26")
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("llama3", "llama3"),
        ("qwen", "qwen"),
        ("cl100k", "cl100k"),
        pytest.param("o200k", "o200k", marks=pytest.mark.slow),
        pytest.param("llama4", "o200k", marks=pytest.mark.slow),
    ],
)
def test_published_ranks_give_the_ids_of_tiktoken(
    name: str, pattern: str, data_dir: Path, real_texts: dict[str, str], tmp_path: Path
) -> None:
    path = published_ranks(name, data_dir, tmp_path)
    ours = Tokenizer.from_tiktoken(path, pattern=pattern, special_tokens={})
    theirs = tiktoken.Encoding(
        name, pat_str=PATTERNS[pattern], mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    emoji = "".join(map(chr, range(0x1F300, 0x1FB00)))
    for language, text in {**real_texts, "emoji": emoji, "digits": "0123456789" * 9}.items():
        assert ours.encode(text) == theirs.encode_ordinary(text), language
    if name == "llama3":
        assert ours.encode("記憶している。") == [61304, 125534, 103792, 1811]


def published_ranks(name: str, data_dir: Path, folder: Path) -> Path:
    """A published rank file. Those of Llama come with the package llama-models 0.3.0."""
    if name == "qwen":
        content = json.loads((data_dir / "tokenizers/qwen/qwen3_tokenizer.json").read_text("utf-8"))
        lines = [line(from_printable(text), rank) for text, rank in content["model"]["vocab"].items()]
        (folder / "qwen").write_text("\n".join(lines))
        return folder / "qwen"
    if name.startswith("llama"):
        package = importlib.util.find_spec("llama_models")
        if package is None or package.origin is None:
            pytest.skip("the package llama-models, which ships the rank files of Llama, is not installed")
        return Path(package.origin).parent / name / "tokenizer.model"
    return data_dir / f"tokenizers/tiktoken/{name}_base.tiktoken"


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
    with pytest.raises(TokenizerError, match="the space before the text"):
        Tokenizer(replace(gpt2.vocabulary, prefix_space=True)).to_tiktoken(tmp_path / "gpt2")
    few = {token_id: token for token_id, token in gpt2.vocabulary.tokens.items() if token != b"\xff"}
    with pytest.raises(TokenizerError, match="1 of the 256 bytes have no token, the first is 0xff"):
        Tokenizer(replace(gpt2.vocabulary, tokens=few)).to_tiktoken(tmp_path / "gpt2")
    gpt2.to_tiktoken(tmp_path / "gpt2")
    for pattern, message in (
        ("cl100k", "'cl100k', which would be read as a name"),
        (r"\w+|\W", r"means something else to tiktoken: \w"),
        ("a{1,3}+|.", "means something else to tiktoken: {1,3}+"),
    ):
        with pytest.raises(TokenizerError, match=re.escape(message)):
            Tokenizer(replace(gpt2.vocabulary, pattern=pattern)).to_tiktoken(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "gpt2.json"]
