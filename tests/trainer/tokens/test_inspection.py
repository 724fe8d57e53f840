"""The tokens of texts and of token files, one by one."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from shared.bpe import Tokenizer
from shared.bpe.training import CHUNK_BYTES
from trainer.commands.tokens import tokens
from trainer.console import token_lines
from trainer.console.token_text import token_text
from trainer.errors import TrainerError, UsageError
from trainer.settings.inspection import InspectionSettings
from trainer.text.utf8 import CorpusError
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile

END = "<|endoftext|>"
Show = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def show(tokenizer_folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Show:
    """The rows of the command as JSON."""

    def shown(source: object, *, tokenizer: Path | None = tokenizer_folder, **options: Any) -> list[dict[str, Any]]:
        tokens(str(source), tokenizer=tokenizer, settings=InspectionSettings(show="json", **options))
        return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    return shown


def ids_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


def test_a_text_has_the_tokens_and_offsets_of_the_tokenizer(show: Show, tokenizer_folder: Path) -> None:
    """Against `encode_with_offsets`, whose offsets are in characters; bytes are those before each in the text."""
    text = f"the naïve 字 cat🙂 sees{END}\na dog\\\n"
    rows = show(text)
    spans = Tokenizer.from_files(tokenizer_folder).encode_with_offsets(text, allowed_special="all")
    assert [(row["id"], row["character"], row["bytes"]) for row in rows] == [
        (span.id, span.start, span.bytes.hex()) for span in spans
    ]
    data = bytes.fromhex("".join(row["bytes"] for row in rows))
    assert data == text.encode()
    for index, row in enumerate(rows):
        assert (row["index"], row["special"]) == (index, row["text"] == END)
        assert data[row["byte"] :].startswith(bytes.fromhex(row["bytes"]))
    assert show("") == []
    plain = show(text, no_separator=True)
    assert ids_of(plain) == Tokenizer.from_files(tokenizer_folder).encode(text)


def test_a_file_has_the_ids_that_encode_writes(show: Show, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Of text, records and several files; `encode` also ends the last document."""
    documents = ["the cat sees\n", "a dog\n", "", " \n", "old red naïve"]
    (tmp_path / "a.txt").write_text(END.join(documents), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(f"the end{END}\n\n".encode()))
    encode_files([tmp_path], Tokenizer.from_files(tokenizer_folder), tmp_path / "out")
    file = TokenFile.open(tmp_path / "out", "train")
    assert ids_of(show(tmp_path, window="0:")) == file.tokens.tolist()
    assert ids_of(show(tmp_path / "out" / "train.json", tokenizer=None, window="0:")) == file.tokens.tolist()
    for number in range(11):
        for source in (tmp_path, tmp_path / "out" / "train.json"):
            rows = show(source, document=number)
            text = b"".join(bytes.fromhex(row["bytes"]) for row in rows).decode()
            assert text == [*documents, *documents, "the end"][number]
            assert not rows or rows[0]["byte"] == 0
    for source in (tmp_path, tmp_path / "out" / "train.json"):
        with pytest.raises(TrainerError, match="has 11 documents, counted from 0: there is no document 11"):
            show(source, document=11)
    assert (
        ids_of(show(tmp_path / "a.txt", window="0:"))
        == file.tokens[: len(show(tmp_path / "a.txt", window="0:"))].tolist()
    )


def test_every_document_and_window_of_a_token_file(show: Show, token_folder: Path, tmp_path: Path) -> None:
    path = token_folder / "train.json"
    ids = TokenFile.open(token_folder, "train").tokens.tolist()
    end = ids[-2]
    starts = [0] + [index + 1 for index, token in enumerate(ids) if token == end]
    for number in (0, 1, 17, 359):
        rows = show(path, tokenizer=None, document=number)
        assert ids_of(rows) == ids[starts[number] : starts[number + 1] - 1]
        assert rows[0]["index"] == starts[number]
        part = show(path, tokenizer=None, document=number, window="3:7")
        assert part == rows[3:7]
    for window, expected in (("0:5", ids[:5]), (":3", ids[:3]), ("6000:", ids[6000:]), ("6110:9999", ids[6110:])):
        rows = show(path, tokenizer=None, window=window)
        assert ids_of(rows) == expected
        assert rows[0]["byte"] == 0
    assert len(show(path, tokenizer=None)) == 256
    with pytest.raises(TrainerError, match="has 6,115 tokens, counted from 0: there is no token 6,115"):
        show(path, tokenizer=None, window="6115:")
    with pytest.raises(TrainerError, match="tokens, counted from 0: there is no token 900"):
        show(path, tokenizer=None, document=1, window="900:901")


def test_documents_across_blocks(
    show: Show, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the places at which a file is read in parts."""
    documents = ["the cat " * 5, "", " ", "a dog", "red " * 9, "old", "\n \n"]
    (tmp_path / "a.txt").write_text(END.join(documents))
    encode_files([tmp_path / "a.txt"], Tokenizer.from_files(tokenizer_folder), tmp_path)
    for block in (1, 2, 3, 5, 7):
        monkeypatch.setattr("trainer.tokens.token_file._BLOCK_IDS", block)
        for number, text in enumerate(documents[:-1]):
            rows = show(tmp_path / "train.json", tokenizer=None, document=number)
            assert b"".join(bytes.fromhex(row["bytes"]) for row in rows).decode() == text
        with pytest.raises(TrainerError, match="has 6 documents"):  # white space after the last is none
            show(tmp_path / "train.json", tokenizer=None, document=6)


def test_text_in_a_pipe_is_exact(
    token_folder: Path, text_file: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def printed(source: object, **options: Any) -> bytes:
        tokens(str(source), tokenizer=token_folder, settings=InspectionSettings(show="text", **options))
        return capsysbinary.readouterr().out

    document = text_file.read_bytes().split(END.encode())[0]
    assert printed(token_folder / "train.json", document=0) == document
    assert printed(text_file, document=0) == document
    assert printed(text_file, window="0:") == text_file.read_bytes()
    assert printed("\x1b[2J é\n") == "\x1b[2J é\n".encode()


@pytest.mark.parametrize("show", ["table", "text"])
def test_a_terminal_gets_colors_and_no_control(
    show: Any, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, color_system="standard", width=40)
    monkeypatch.setattr(token_lines, "Console", lambda **_: terminal)
    text = f"字\x1b[2J\x9b2J\r[b]x[/b] :smile: {END}"
    tokens(text, tokenizer=tokenizer_folder, settings=InspectionSettings(show=show))
    shown = output.getvalue()
    assert "\x1b[1;37;41m" in shown  # a special token
    for code in ("30;46", "30;43", "30;42", "30;45", "1;37;41", "1", "0"):
        shown = shown.replace(f"\x1b[{code}m", "")
    assert shown.replace("\n", "").isprintable()
    for part in (r"\xe5", r"\x1b", r"\xc2", r"\r", END):
        assert part in shown
    if show == "text":
        assert shown.endswith(f"{token_text(text.encode()[-len(END) :])}\n")
        assert ":smile:" in shown
        assert "[b]x[/b]" in shown


def test_a_table_in_a_pipe_is_plain(tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens("é\n", tokenizer=tokenizer_folder)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["index", "byte", "character", "id", "bytes", "text"]
    assert [line.split() for line in lines] == [
        ["0", "0", "0", "195", "c3", r"'\xc3'"],
        ["1", "1", "0", "169", "a9", r"'\xa9'"],
        ["2", "2", "1", "10", "0a", r"'\n'"],
    ]


def test_only_what_is_asked_for_is_read(show: Show, tokenizer_folder: Path, token_folder: Path, tmp_path: Path) -> None:
    """A text and a token file of 100 GB, almost all of it a hole: reading that would take minutes."""
    with (tmp_path / "huge.txt").open("wb") as file:
        file.write(f"the cat sees a dog{END}".encode() * (4 * CHUNK_BYTES // 30))
        file.truncate(100 << 30)
    assert len(show(tmp_path / "huge.txt", window="0:10")) == 10
    assert show(tmp_path / "huge.txt", document=100)[-1]["text"].endswith("g")
    manifest = json.loads((token_folder / "train.json").read_bytes())
    shard = {**manifest["shards"][0], "count": 50 << 30}
    (tmp_path / "train.json").write_text(json.dumps({**manifest, "count": 50 << 30, "shards": [shard]}))
    with (tmp_path / "train-00000.bin").open("wb") as file:
        file.write((token_folder / "train-00000.bin").read_bytes())
        file.truncate(100 << 30)
    path = tmp_path / "train.json"
    assert show(path, document=17) == show(token_folder / "train.json", document=17)
    assert ids_of(show(path, window=f"{(50 << 30) - 3}:")) == [0, 0, 0]


def test_what_cannot_be_shown_is_refused(
    show: Show, token_folder: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("stories.txt", "web.jsonl.gz", "tokens/train.bin", "train.json", "and/or", str(tmp_path / "*.txt")):
        with pytest.raises(
            TrainerError, match="there is no such file; to show the tokens of these characters, add --text"
        ):
            show(name)
        assert show(name, as_text=True)
    for text in ("hello", "a.b", "why*not?", "an idea/a plan", "x" * 5000, "a\0b"):
        assert show(text)
    with pytest.raises(UsageError, match="name the tokenizer that a text is encoded with"):
        show("a text", tokenizer=None)
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8"):
        show("bad.txt")
    assert show("bad.txt", errors="replace")[-1]["byte"] == 3
    with pytest.raises(CorpusError, match="the text is not UTF-8: byte 0xff at offset 1"):
        show(os.fsdecode(b"a\xff"))
    other = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [])
    other.save(tmp_path / "other")
    with pytest.raises(TrainerError, match="was made with another tokenizer"):
        show(token_folder / "train.json", tokenizer=tmp_path / "other")
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="has no end-of-text token"):
        show("lines.jsonl", tokenizer=tmp_path / "other")
    assert ids_of(show(f"a{END}", tokenizer=tmp_path / "other")) == [*f"a{END}".encode()]
    np.save(tmp_path / "array.npy", np.array([1, 2]))
    with pytest.raises(UsageError, match=r"make a token file of it first: encode --manifest-for array\.npy"):
        show("array.npy")
    np.array([1, 2], np.uint16).tofile(tmp_path / "array.bin")
    with pytest.raises(TrainerError, match="encode --manifest-for"):
        show("array.bin")
    for window in ("5", "5:5", "7:3", "a:b", "-3:5", "1:2:3", "", ":0", "²:3"):
        with pytest.raises(UsageError, match="--window must be START:STOP"):
            InspectionSettings(window=window)
    with pytest.raises(UsageError, match="document must be at least 0"):
        InspectionSettings(document=-1)


def test_a_closed_pipe_ends_it(show: Show, token_folder: Path) -> None:
    """`tokens … | head` is common."""
    command = f"{sys.executable} -m trainer tokens {token_folder / 'train.json'} --window 0: | head -2"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
