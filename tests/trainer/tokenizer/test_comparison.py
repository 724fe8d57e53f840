"""Tokenizers crossed with texts."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tiktoken.load
from rich.console import Console

from shared.bpe import PATTERNS, Tokenizer, TokenizerError
from trainer.console.progress import progress
from trainer.errors import TrainerError, UsageError
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.settings.vocab import VocabSettings
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.comparison import TextEncodings, compare_tokenizers, open_tokenizer
from trainer.tokenizer.comparison_tables import to_json, to_tables
from trainer.tokenizer.train import train_tokenizer

DOCUMENTS = ["the cat sees a naïve dog", "", "ein Hund sieht die Katze\n", "über"]


@pytest.fixture(scope="module")
def tokenizers(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One that knows the toy language, and one that was trained on German."""
    folder = tmp_path_factory.mktemp("german")
    (folder / "german.txt").write_text("ein Hund sieht die Katze, und die Katze sieht einen Hund. " * 20)
    train_tokenizer([folder / "german.txt"], folder / "tokenizer", VocabSettings(vocab_size=290))
    return [tokenizer_folder, folder / "tokenizer"]


def compare(tokenizers: list[Path], *texts: Path, **options: Any) -> dict[str, TextEncodings]:
    with progress() as new_bar:
        return compare_tokenizers(tokenizers, texts, ComparisonSettings(threads=1, **options), new_bar)


def test_every_tokenizer_on_every_text(tokenizers: list[Path], tmp_path: Path) -> None:
    """The same sums one document at a time; each vocabulary is best on the text that it was trained on."""
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(DOCUMENTS))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS[2:]))
    rows = to_json(compare(tokenizers, tmp_path / "a.txt", tmp_path / "b.jsonl"))
    pairs = [(text, path) for text in (DOCUMENTS, DOCUMENTS[2:]) for path in tokenizers]
    for row, (documents, path) in zip(rows, pairs, strict=True):
        tokenizer = Tokenizer.from_files(path)
        encoded = [tokenizer.encode(text) for text in documents]
        tokens, used = sum(map(len, encoded)), len({token for ids in encoded for token in ids})
        text = "".join(documents)
        assert (row["tokenizer"], row["tokens"], row["documents"]) == (str(path), tokens, len(documents))
        assert (row["bytes"], row["characters"]) == (len(text.encode()), len(text))
        assert row["words"] == sum(len(document.split()) for document in documents)
        assert row["bytes_per_token"] == pytest.approx(len(text.encode()) / tokens)
        assert row["tokens_per_word"] == pytest.approx(tokens / row["words"])
        assert row["vocabulary_used"] == pytest.approx(used / len(tokenizer))
        assert row["megabytes_per_second"] > 0
    assert rows[3]["tokens"] < rows[2]["tokens"]


@pytest.mark.case("D33")
def test_white_space_behind_the_last_separator_is_no_document(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b c\n<|endoftext|>\nd e f\n<|endoftext|>\n")
    (tmp_path / "b.txt").write_text("\n \n")
    row, *_ = to_json(compare(tokenizers, tmp_path / "a.txt"))
    assert (row["documents"], row["bytes"]) == (2, 13)
    for no_separator in (False, True):
        with pytest.raises(TrainerError, match=r"b\.txt contains no text"):
            compare(tokenizers, tmp_path / "b.txt", no_separator=no_separator)


def test_the_beginning_of_a_text(tokenizers: list[Path], tmp_path: Path) -> None:
    """A character that would be cut in two is left out."""
    (tmp_path / "a.txt").write_text("naïve" * 100)
    for max_bytes, expected in ((3, "na"), (4, "naï"), (1000, "naïve" * 100)):
        [result] = compare(tokenizers, tmp_path / "a.txt", max_size=str(max_bytes)).values()
        assert (result.size.characters, result.size.bytes) == (len(expected), len(expected.encode()))


def test_special_tokens_within_a_document_are_text(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a<|endoftext|>b")
    [result] = compare(tokenizers[:1], tmp_path / "a.txt", no_separator=True).values()
    assert result.size.documents == 1
    assert result.size.bytes == len("a<|endoftext|>b")
    assert result.encodings[str(tokenizers[0])].counts[-1] == 0


def test_tables_fit_eighty_columns(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat")
    console = Console(width=80, file=StringIO())
    for table in to_tables(compare(tokenizers, tmp_path / "a.txt")):
        console.print(table)
    assert isinstance(console.file, StringIO)
    output = console.file.getvalue()
    assert "100.0%" in output
    assert "…" not in output
    assert f"\n  {tokenizers[1].name} " in output


def test_a_title_is_one_line_however_narrow_its_table_is(tokenizers: list[Path], tmp_path: Path) -> None:
    path = tmp_path / ("long name " * 15 + ".txt")
    path.write_text("the cat")
    console = Console(width=1000, file=StringIO())
    console.print(*to_tables(compare(tokenizers, path)))
    assert isinstance(console.file, StringIO)
    assert f"{path}: 7 bytes, 2 words, 1 documents\n" in console.file.getvalue()


def test_what_cannot_be_compared_is_refused(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    with pytest.raises(TrainerError, match=r"empty\.txt contains no text"):
        compare(tokenizers, tmp_path / "empty.txt")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8"):
        compare(tokenizers, tmp_path / "bad.txt")
    with pytest.raises(UsageError, match="no tokenizer is given"):
        compare([], tmp_path / "bad.txt")
    with pytest.raises(TokenizerError, match=str(tmp_path)):
        compare([tmp_path], tmp_path / "bad.txt")


def test_rank_files_of_tiktoken(tokenizers: list[Path], tmp_path: Path) -> None:
    """The oracle is tiktoken itself: with the pattern beside the file, or else with that of the file's name."""
    text = "The naïve cat's 12345 dogs.\n\n  über"
    path = tmp_path / "cl100k_own.tiktoken"
    own = Tokenizer.from_files(tokenizers[0])
    own.to_tiktoken(path)
    assert open_tokenizer(path).encode(text) == own.encode(text)
    path.with_name(f"{path.name}.json").unlink()
    encoding = tiktoken.Encoding(
        "own",
        pat_str=PATTERNS["cl100k"],
        mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)),
        special_tokens={},
    )
    assert open_tokenizer(path).encode(text) == encoding.encode_ordinary(text)
    assert open_tokenizer(path).pattern == PATTERNS["cl100k"]
    path.rename(tmp_path / "own.tiktoken")
    with pytest.raises(UsageError, match=r"the pattern of a rank file is read from own\.tiktoken\.json beside it"):
        open_tokenizer(tmp_path / "own.tiktoken")
