import json
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TokenizerError
from shared.bpe.byte_alphabet import BYTE_TO_CHARACTER

END = "<|endoftext|>"


def write(folder: Path, merges: str, extra: tuple[str, ...]) -> Path:
    vocab = {text: token_id for token_id, text in enumerate([*BYTE_TO_CHARACTER, *extra])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_bytes(merges.encode())
    return folder


@pytest.mark.parametrize("merges", ["#version: 0.2\na b\n# #\n", "a b\n# #\n", "a b\r\n# #\r\n", "a b\n# #\n\n\n"])
def test_only_a_version_line_is_no_merge(tmp_path: Path, merges: str) -> None:
    tokenizer = Tokenizer.from_files(write(tmp_path, merges, ("ab", "##", END)))
    assert tokenizer.encode("ab##") == [256, 257]
    assert tokenizer.special_tokens == {END: 258}
    assert tokenizer.end_of_text_id == 258


def test_both_paths_may_be_given(tmp_path: Path) -> None:
    write(tmp_path, "a b", ("ab",))
    (tmp_path / "merges.txt").rename(tmp_path / "other.bpe")
    assert Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "other.bpe").encode("ab") == [256]


def test_fingerprint_does_not_depend_on_the_format(gpt2: Tokenizer, tmp_path: Path) -> None:
    gpt2.save(tmp_path)
    assert Tokenizer.from_files(tmp_path).fingerprint == gpt2.fingerprint


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ("a b\nc d\n", "merge 2, 'c d', needs the token 'cd'"),
        ("#version: 0.2\na b\nxyz\n", "merge 3 must be two tokens, not 'xyz'"),
        ("a b\n\na b\n", "merge 2"),
        ("a b c\n", "merge 1"),
        ("<html>\n", "a web page"),
    ],
)
def test_damaged_merges_are_refused_by_line(tmp_path: Path, merges: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_files(write(tmp_path, merges, ("ab",)))


def test_a_missing_merges_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "", ())
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt cannot be read"):
        Tokenizer.from_files(tmp_path)
