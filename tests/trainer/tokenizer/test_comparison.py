"""Tokenizers crossed with texts."""

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tiktoken.load
from rich.console import Console

from shared.bpe import PATTERNS, Tokenizer, TokenizerError
from trainer.console.progress import progress
from trainer.console.tables import print_table
from trainer.errors import TrainerError, UsageError
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.settings.vocab import VocabSettings
from trainer.text.sampling import sample_documents
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.comparison import Comparison, compare_tokenizers, open_tokenizer
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


def compare(tokenizers: list[Path], *texts: Path, **options: Any) -> Comparison:
    with progress() as new_bar:
        return compare_tokenizers(tokenizers, texts, ComparisonSettings(threads=1, **options), new_bar)


def test_every_tokenizer_on_every_text(tokenizers: list[Path], tmp_path: Path) -> None:
    """The same sums one document at a time; each vocabulary is best on the text that it was trained on."""
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(DOCUMENTS))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS[2:]))
    rows = to_json(compare(tokenizers, tmp_path / "a.txt", tmp_path / "b.jsonl"))["texts"]
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
    row, *_ = to_json(compare(tokenizers, tmp_path / "a.txt"))["texts"]
    assert (row["documents"], row["bytes"]) == (2, 13)
    for no_separator in (False, True):
        with pytest.raises(TrainerError, match=r"b\.txt contains no text"):
            compare(tokenizers, tmp_path / "b.txt", no_separator=no_separator)


def test_the_beginning_of_a_text(tokenizers: list[Path], tmp_path: Path) -> None:
    """A character that would be cut in two is left out."""
    (tmp_path / "a.txt").write_text("naïve" * 100)
    for max_bytes, expected in ((3, "na"), (4, "naï"), (1000, "naïve" * 100)):
        [result] = compare(tokenizers, tmp_path / "a.txt", max_size=str(max_bytes)).texts.values()
        assert (result.size.characters, result.size.bytes) == (len(expected), len(expected.encode()))


def test_special_tokens_within_a_document_are_text(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a<|endoftext|>b")
    [result] = compare(tokenizers[:1], tmp_path / "a.txt", no_separator=True).texts.values()
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


def test_a_title_is_one_line_however_narrow_its_table_is(
    tokenizers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where COLUMNS says that the pipe is narrow."""
    path = tmp_path / ("long name " * 15 + ".txt")
    path.write_text("the cat")
    monkeypatch.setenv("COLUMNS", "60")
    for table in to_tables(compare(tokenizers, path)):
        print_table(table)
    assert f"{path}: 7 bytes, 2 words, 1 documents\n" in capsys.readouterr().out


@pytest.fixture(scope="module")
def published(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The tokenizers of the CS336 assignment, of 10,000 tokens on TinyStories and 32,000 on OpenWebText; samples."""
    folder = tmp_path_factory.mktemp("published")
    for name, text, size in (("stories", "tinystories_train.txt", 10_000), ("web", "owt/owt_sample.txt", 32_000)):
        train_tokenizer([data_dir / text], folder / name, VocabSettings(vocab_size=size, held_out="0"))
    return [folder / "stories", folder / "web"]


def test_the_published_vocabularies_share_half_of_the_merges(published: list[Path], data_dir: Path) -> None:
    """Issue 13: 4,855 of 9,743 merges. Counted again from the text of the files that Hugging Face's format has."""
    valid = data_dir / "tinystories_valid.txt"
    content = to_json(compare(published, valid, data_dir / "owt/owt_sample.txt"))
    tokens, merges = content["shared"]
    assert (merges["kind"], merges["count"], round(merges["of_first"], 3)) == ("merges", 4855, 0.498)
    files = [json.loads((path / "tokenizer.json").read_bytes())["model"] for path in published]
    assert merges["count"] == len(set.intersection(*({tuple(pair) for pair in file["merges"]} for file in files)))
    spelled = [{token for token in file["vocab"] if len(token) > 1} - {"<|endoftext|>"} for file in files]
    assert tokens["count"] == len(spelled[0] & spelled[1]) == 6649
    stories, web = content["vocabularies"]
    assert (stories["tokens"], stories["merges"], web["merges"]) == (9743, 9743, 31_743)
    assert stories["longest"][0]["text"] == " accomplishment"  # the longest of the assignment's, too
    assert (web["longest"][0]["text"], web["longest"][0]["bytes"]) == ("-" * 64, 64)
    # The assignment's write-ups: 4.08 bytes per token on stories, and 3.25 from stories to the web (our sample 3.17).
    assert content["texts"][0]["bytes_per_token"] == pytest.approx(4.08, abs=0.005)
    assert content["texts"][2]["bytes_per_token"] == pytest.approx(3.25, abs=0.1)


def test_a_sample_of_documents(tokenizers: list[Path], tmp_path: Path) -> None:
    """Drawn again from the text by itself: it depends on the seed, and not on how the text is stored."""
    documents = [f"document {number} " + "the cat " * (number % 7) for number in range(300)]
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(documents))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    sizes = {}
    for seed in (0, 1):
        for name in ("a.txt", "a.jsonl"):
            drawn, total = sample_documents(iter(documents), 10, seed, 1 << 20)
            [result] = compare(tokenizers[:1], tmp_path / name, sample=10, seed=seed).texts.values()
            assert (result.size.documents, result.drawn_from, total) == (10, 300, 300)
            assert result.size.bytes == sizes.setdefault(seed, len("".join(drawn).encode()))
            tokens = sum(len(Tokenizer.from_files(tokenizers[0]).encode(text)) for text in drawn)
            assert result.encodings[str(tokenizers[0])].tokens == tokens
    assert sizes[0] != sizes[1]
    [result] = compare(tokenizers[:1], tmp_path / "a.txt", sample=1000).texts.values()
    assert (result.size.documents, result.drawn_from) == (300, 300)
    [row] = to_json(compare(tokenizers[:1], tmp_path / "a.txt", sample=10))["texts"]
    assert (row["megabytes_per_second"], row["seed"], row["projection"]) == (None, 0, None)


def test_the_time_for_a_larger_text(tokenizers: list[Path], tmp_path: Path) -> None:
    """From the whole text, even where a sample is compared; another special token's text costs nothing."""
    text = "<|endoftext|>".join(["the cat sees a dog. "] * 1000)
    (tmp_path / "a.txt").write_text(text)
    comparison = compare(tokenizers, tmp_path / "a.txt", sample=3, project="825GB")
    row, _ = to_json(comparison)["texts"]
    projection, measured = row["projection"], row["projection"]["measured"]
    assert measured["bytes"] == len(text)
    assert measured["tokens"] == len(Tokenizer.from_files(tokenizers[0]).encode(text, allowed_special="all"))
    assert projection["bytes"] == 825 << 30  # the Pile has 825.18 GiB (Gao et al. 2020)
    assert projection["seconds"] == pytest.approx(measured["seconds"] * (825 << 30) / len(text))
    assert projection["tokens"] == round(measured["tokens"] * (825 << 30) / len(text))
    console = Console(width=120, file=StringIO())
    console.print(*to_tables(comparison))
    assert isinstance(console.file, StringIO)
    output = console.file.getvalue()
    assert "Reading and encoding 885,837,004,800 bytes with 1 thread," in output
    assert str(timedelta(seconds=round(projection["seconds"]))) in output


def test_longest_tokens_are_shown_as_bytes_where_they_are_not_text(tmp_path: Path) -> None:
    vocab = {bytes([byte]): byte for byte in range(256)} | {b"\xe2\x80": 256, b"\x1b[": 257, b"\xe2\x80\x99": 258}
    merges = [(b"\xe2", b"\x80"), (b"\x1b", b"["), (b"\xe2\x80", b"\x99")]
    Tokenizer.from_vocab(vocab, merges).save(tmp_path / "odd")
    (tmp_path / "a.txt").write_text("a")
    content = to_json(compare([tmp_path / "odd"], tmp_path / "a.txt", longest=3))
    [odd] = content["vocabularies"]
    assert [token["text"] for token in odd["longest"]] == ["’", "\\xe2\\x80", "\\x1b["]
    assert (odd["merges"], content["shared"]) == (3, [])


def test_what_cannot_be_compared_is_refused(tokenizers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    with pytest.raises(TrainerError, match=r"empty\.txt contains no text"):
        compare(tokenizers, tmp_path / "empty.txt")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8"):
        compare(tokenizers, tmp_path / "bad.txt")
    (tmp_path / "blanks.txt").write_text("<|endoftext|>" * 30 + "a")
    with pytest.raises(TrainerError, match=r"the documents that were drawn contain no text; draw more"):
        compare(tokenizers, tmp_path / "blanks.txt", sample=1)
    with pytest.raises(CorpusError, match="lower --sample, or raise --memory-limit"):
        sample_documents(["a" * 1000] * 100, 50, 0, 100_000)
    for name, value in (("sample", 0), ("project", "much"), ("seed", -1), ("longest", -1), ("max_size", "0")):
        with pytest.raises(UsageError):
            ComparisonSettings(**{name: value})
    with pytest.raises(UsageError, match="standard input can be read only once"):
        compare(tokenizers, Path("-"), project="1G")
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
