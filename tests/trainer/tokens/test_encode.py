import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import xxhash

from shared.bpe import Tokenizer, TokenizerError, train_bpe
from shared.bpe.training import TextFile
from trainer.errors import TrainerError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.storage.folder import LocalFolder, StorageError
from trainer.text import sources
from trainer.text.utf8 import CorpusError
from trainer.tokens.encode import EncodingReport, encode_files
from trainer.tokens.output import Output
from trainer.tokens.token_file import TokenFile, TokenFileError

END = "<|endoftext|>"


def encode(folder: Path, tokenizer: Tokenizer, *texts: str | bytes, **options: object) -> EncodingReport:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(text.encode() if isinstance(text, str) else text)
    return encode_files(paths, tokenizer, folder / "out", EncodeSettings(**options))  # type: ignore[arg-type]


def decoded(folder: Path, tokenizer: Tokenizer, name: str = "train") -> str:
    return tokenizer.decode(TokenFile.open(folder / "out", name).tokens, errors="strict")


def read_in_chunks(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, chunk_bytes))


@pytest.mark.case("D33")
@pytest.mark.parametrize(
    ("text", "documents", "ends"),
    [
        ("a", 1, False),
        (f"a{END}", 1, True),
        (f"a{END}b", 2, False),
        (f"a{END}{END}b{END}", 3, True),  # an empty document keeps its id
        (f"{END}a", 2, False),
        (f"{END}", 1, True),
        (f"a{END}\n", 1, True),
        (f"a{END} \t\r\n\v\f", 1, True),
        (f"a{END}\n{END}\n", 2, True),  # white space between two separators is a document
        (f"a{END}\n.", 2, False),
        (f"a{END}\x1c", 2, False),  # white space to Python's text, but not to ASCII
        (f"a{END}\u00a0", 2, False),
        (f"\n{END}a{END}\n", 2, True),
        (f"a\r\nb\rc\x00\ufeff{END}  \U0001f600", 2, False),
        (f"\ufeffa{END[:-1]}b", 1, False),
    ],
)
def test_B88_exactly_one_id_after_each_document(
    tmp_path: Path, tokenizer: Tokenizer, text: str, documents: int, ends: bool
) -> None:
    manifest = encode(tmp_path, tokenizer, text).manifests["train"]
    (source,) = manifest.sources
    assert (manifest.documents, source.documents, source.ends_with_separator) == (documents, documents, ends)
    assert decoded(tmp_path, tokenizer) == text + ("" if ends else END)
    assert TokenFile.open(tmp_path / "out", "train").tokens.tolist().count(tokenizer.end_of_text_id) == documents
    assert manifest.bytes == len(text.replace(END, "").encode())


def test_B88_three_files_one_of_them_empty(tmp_path: Path, tokenizer: Tokenizer) -> None:
    manifest = encode(tmp_path, tokenizer, "a", "b", "").manifests["train"]
    assert TokenFile.open(tmp_path / "out", "train").tokens.tolist() == [
        97,
        tokenizer.end_of_text_id,
        98,
        tokenizer.end_of_text_id,
    ]
    assert [source.documents for source in manifest.sources] == [1, 1, 0]
    assert manifest.sources[0].hash == xxhash.xxh3_128(b"a").hexdigest()


def test_B88_without_a_separator_text_that_spells_it_stays_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    manifest = encode(tmp_path, tokenizer, f"a{END}b", "", "c", no_separator=True).manifests["train"]
    tokens = TokenFile.open(tmp_path / "out", "train").tokens.tolist()
    assert tokens.count(tokenizer.end_of_text_id) == manifest.documents == 2
    assert tokenizer.decode(tokens) == f"a{END}b{END}c{END}"


def test_the_tokenizer_lies_beside_the_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    manifest = encode(tmp_path, tokenizer, "a").manifests["train"]
    assert Tokenizer.from_files(tmp_path / "out").fingerprint == manifest.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("chunk_bytes", [1, 5, 4096])
def test_B15_tokens_do_not_depend_on_the_chunks(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    read_in_chunks(monkeypatch, chunk_bytes)
    text = f"the cat sat  on\r\n\n the mat\U0001f600{END}and the dog's{END}\n" * 400  # more than one block
    encode(tmp_path, tokenizer, text)
    expected = tokenizer.encode(text, allowed_special="all")
    assert TokenFile.open(tmp_path / "out", "train").tokens.tolist() == expected


@pytest.mark.parametrize(
    ("text", "documents", "ends"),
    [("a\n\n", 1, True), ("a\n\n\n", 1, True), ("a\n\n b", 2, False), ("a\n \n", 1, False), ("\n\n\t", 1, True)],
)
def test_a_separator_may_be_white_space(tmp_path: Path, text: str, documents: int, ends: bool) -> None:
    tokenizer = train_bpe(["a b"], 257, special_tokens=["\n\n"]).tokenizer
    (source,) = encode(tmp_path, tokenizer, text, separator="\n\n").manifests["train"].sources
    assert (source.documents, source.ends_with_separator) == (documents, ends)


@pytest.mark.case("D33")
@pytest.mark.parametrize("chunk_bytes", [1, 4096])
def test_white_space_behind_the_last_separator_is_no_document(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Nor does it get lost: it stands before what the next file begins with, as it does within a file."""
    read_in_chunks(monkeypatch, chunk_bytes)
    texts = [f"a b c\n{END}\nd e f\n{END}\n", "  \n", f"g{END}\n\n"]
    manifest = encode(tmp_path, tokenizer, *texts).manifests["train"]
    assert decoded(tmp_path, tokenizer) == "".join(texts)
    assert manifest.documents == TokenFile.open(tmp_path / "out", "train").tokens.tolist().count(
        tokenizer.end_of_text_id
    )
    assert [(source.documents, source.ends_with_separator) for source in manifest.sources] == [
        (2, True),
        (0, False),
        (1, True),
    ]
    assert manifest.bytes == sum(len(text.replace(END, "")) for text in texts)


@pytest.mark.case("D33")
def test_the_documents_of_tiny_stories(tmp_path: Path, data_dir: Path, tokenizer: Tokenizer) -> None:
    """As many as there are separators: each stands on a line of its own, behind a story."""
    for name, documents in (("train", 16_390), ("valid", 1_694)):
        path = data_dir / f"tinystories_{name}.txt"
        manifest = encode_files([path], tokenizer, tmp_path / name).manifests["train"]
        assert manifest.documents == documents == path.read_bytes().count(END.encode())
    tokens = TokenFile.open(tmp_path / "valid", "train").tokens
    assert tokenizer.decode_bytes(tokens.tolist()) == path.read_bytes()


def test_validation_documents_are_whole_and_always_the_same(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"the cat {number}{END}" for number in range(200)]
    text = "".join(documents)
    report = encode(tmp_path, tokenizer, text, val_fraction=0.1)
    train, validation = decoded(tmp_path, tokenizer), decoded(tmp_path, tokenizer, "val")
    parts = {part + END for part in validation.split(END)[:-1]}
    assert parts <= set(documents)
    assert train == "".join(document for document in documents if document not in parts)
    assert 8 <= report.manifests["val"].documents == len(parts) <= 35
    # The same documents in other blocks.
    read_in_chunks(monkeypatch, 11)
    encode(tmp_path, tokenizer, text, val_fraction=0.1, overwrite=True)
    assert decoded(tmp_path, tokenizer, "val") == validation
    encode(tmp_path, tokenizer, text, val_fraction=0.1, seed=1, overwrite=True)
    assert decoded(tmp_path, tokenizer, "val") != validation


@pytest.mark.case("D54")
@pytest.mark.parametrize("text", ["a", f"a{END}\n\n\n"])
def test_a_text_too_short_to_hold_out_is_refused_with_advice_that_works(
    tmp_path: Path, tokenizer: Tokenizer, text: str
) -> None:
    with pytest.raises(TrainerError, match=r"the split 'val' would be empty; .* --split val instead of --val-fraction"):
        encode(tmp_path, tokenizer, text, val_fraction=0.001)
    assert not (tmp_path / "out").exists()
    encode(tmp_path, tokenizer, text)
    encode(tmp_path, tokenizer, "a validation text of its own", split="val")
    assert {path.name for path in (tmp_path / "out").glob("*.bin")} == {"train-00000.bin", "val-00000.bin"}


@pytest.mark.case("D59")
@pytest.mark.parametrize("val_fraction", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_end_of_a_text_without_separators_is_held_out(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    data_dir: Path,
    val_fraction: float,
    threads: int,
) -> None:
    read_in_chunks(monkeypatch, 10_000)
    text = (data_dir / "tinyshakespeare.txt").read_text()[:200_000]
    report = encode(tmp_path, tokenizer, text, val_fraction=val_fraction, threads=threads)
    assert report.end_is_held_out
    train, val = decoded(tmp_path, tokenizer), decoded(tmp_path, tokenizer, "val")
    assert train.removesuffix(END) + val.removesuffix(END) == text
    assert train.endswith(f"\n{END}")
    assert abs(len(val) / len(text) - val_fraction) < 0.2 * val_fraction
    for name, part in (("train", train), ("val", val)):
        manifest = report.manifests[name]
        TokenFile.open(tmp_path / "out", name).verify()
        assert (manifest.documents, manifest.bytes) == (1, len(part.removesuffix(END)))


@pytest.mark.case("D59")
@pytest.mark.parametrize(
    ("texts", "train"),
    [
        # A document's end is near: no document is cut.
        ([f"{number} the cat sat.\n" * 30 for number in range(6)], 5),
        # Lines, of which one ends near; then words, then characters.
        (["the cat sat on the mat\n" * 500], 1),
        (["the cat sat on the mat" * 500], 1),
        (["中文" * 500], 1),
        # White space behind the last separator, which had gone to the validation file, stands at its end.
        ([f"the cat sat\n{END}\n"], 1),
        ([f"the cat sat\n{END}\n", " \n", f"on the mat\n{END}\n"], 1),
    ],
)
def test_the_end_of_few_documents_is_held_out(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[str], train: int
) -> None:
    report = encode(tmp_path, tokenizer, *texts, val_fraction=0.05, seed=1)
    assert report.end_is_held_out
    assert report.manifests["train"].documents == train
    parts = [decoded(tmp_path, tokenizer, name) for name in ("train", "val")]
    assert "".join(parts).replace(END, "") == "".join(texts).replace(END, "")
    assert all(part.replace(END, "").strip() for part in parts)


@pytest.mark.case("D59")
def test_the_first_document_is_for_training(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for seed in range(8):
        report = encode(tmp_path, tokenizer, "a\n" * 99, val_fraction=0.9, seed=seed, overwrite=True)
        assert decoded(tmp_path, tokenizer).startswith("a\n")
        assert report.manifests["val"].bytes > report.manifests["train"].bytes > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 0.0}, "between 0 and 1"),
        ({"val_fraction": float("nan")}, "between 0 and 1"),
        ({"val_fraction": 0.1, "split": "test"}, "cannot be combined with --split 'test'"),
        ({"split": "../x"}, "split"),
        ({"split": "tokenizer"}, "tokenizer.json is another file of the folder"),
        ({"separator": "---"}, r"'---' is not a special token of the tokenizer \(it has: '<|endoftext|>'\)"),
    ],
)
def test_settings_that_do_not_fit_are_wrong_usage(
    tmp_path: Path, tokenizer: Tokenizer, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("|", r"\|")):
        encode(tmp_path, tokenizer, "a", **options)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no end-of-text token"):
        encode(tmp_path, train_bpe([], 256).tokenizer, "a", no_separator=True)


def test_nothing_is_overwritten_unless_allowed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    encode(tmp_path, tokenizer, "a")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(TokenFileError, match=r"train\.json exists"):
        encode(tmp_path, tokenizer, "b")
    other = train_bpe(["other other"], 270, special_tokens=[END]).tokenizer
    with pytest.raises(TokenFileError, match=rf"{tokenizer.fingerprint}.*{other.fingerprint}"):
        encode(tmp_path, other, "b", split="val")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    encode(tmp_path, tokenizer, "b", overwrite=True)
    assert decoded(tmp_path, tokenizer) == f"b{END}"


@pytest.mark.parametrize("wrong", [b"good \xff\xfe line\n" * 10, "text".encode("utf-16"), b"\x1f\x8b\x08"])
def test_B06_B28_a_wrong_file_among_others_leaves_nothing(tmp_path: Path, tokenizer: Tokenizer, wrong: bytes) -> None:
    with pytest.raises(CorpusError, match=r"2\.txt"):
        encode(tmp_path, tokenizer, "a", "b", wrong, "c", "d")
    assert list(tmp_path.glob("out/*")) == []


@pytest.mark.parametrize("texts", [[""], ["", ""]])
def test_files_without_text_are_refused(tmp_path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    with pytest.raises(TrainerError, match="no text"):
        encode(tmp_path, tokenizer, *texts)


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    seen: list[int] = []
    (tmp_path / "a.txt").write_text("é" * 10)
    (tmp_path / "b.txt").write_text("b" * 5)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    report = encode_files(paths, tokenizer, tmp_path / "out", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == report.bytes_read == 25


def test_memory_is_bounded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = ("the cat sat on the mat " * 4000).encode() * 400
    tracemalloc.start()
    try:
        encode(tmp_path, tokenizer, text, threads=2)
        # The text itself is held by this test.
        assert tracemalloc.get_traced_memory()[1] < len(text) + 24_000_000
    finally:
        tracemalloc.stop()


def test_real_stories_round_trip(tmp_path: Path, data_dir: Path, tokenizer: Tokenizer) -> None:
    data = (data_dir / "tinystories_valid.txt").read_bytes()[:300_000].rsplit(b"\n", 1)[0]
    encode(tmp_path, tokenizer, data)
    assert decoded(tmp_path, tokenizer).encode() == data + END.encode()


def test_a_tokenizer_that_puts_a_space_before_a_text(tmp_path: Path, data_dir: Path) -> None:
    """SentencePiece's: each document gets one space, although a long text is cut for the threads."""
    pieces = Tokenizer.from_files(data_dir / "models" / "stories260K" / "tok512.bin")
    [story, *others] = (data_dir / "tinystories_valid.txt").read_text("utf-8")[:120_000].split(END)[:40]
    (tmp_path / "text.txt").write_text(story * 60 + "</s>" + "</s>".join(others), encoding="utf-8")
    encode_files([tmp_path / "text.txt"], pieces, tmp_path / "out", EncodeSettings(separator="</s>", threads=2))
    expected = [token for text in (story * 60, *others) for token in (*pieces.encode(text), pieces.end_of_text_id)]
    assert TokenFile.open(tmp_path / "out", "train").tokens.tolist() == expected


def test_a_tokenizer_that_cannot_be_saved_is_refused_before_the_work(tmp_path: Path, tokenizer: Tokenizer) -> None:
    unsaved = Tokenizer(replace(tokenizer.vocabulary, nfc=True, prepended_space=True))
    (tmp_path / "text.txt").write_text("a")
    read: list[int] = []
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot hold NFC"):
        encode_files([tmp_path / "text.txt"], unsaved, tmp_path / "out", progress=read.append)
    assert not read
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["tokenizer", "disk"])
def test_what_is_to_be_replaced_stays_if_a_run_cannot_begin(
    tmp_path: Path, tokenizer: Tokenizer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(tmp_path, tokenizer, "a")
    if fault == "tokenizer":
        tokenizer = Tokenizer(replace(tokenizer.vocabulary, nfc=True, prepended_space=True))
    else:
        monkeypatch.setattr(Output, "begin", Mock(side_effect=StorageError("the disk is full")))
    with pytest.raises((TokenizerError, StorageError)):
        encode(tmp_path, tokenizer, "b", overwrite=True)
    assert decoded(tmp_path, tokenizer) == f"a{END}"


def test_validation_data_goes_with_the_training_data_that_it_was_held_out_of(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Else its documents would be trained on, and validate."""
    encode(tmp_path, tokenizer, f"a{END}" * 99, val_fraction=0.1)
    encode(tmp_path, tokenizer, f"a{END}" * 99, overwrite=True)
    assert not [*(tmp_path / "out").glob("val*")]


def test_validation_data_that_was_held_out_goes_first(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the training data beside it nothing would say that it was held out, after a kill in between."""
    encode(tmp_path, tokenizer, f"a{END}" * 99, val_fraction=0.1)
    removed: list[str] = []
    monkeypatch.setattr(LocalFolder, "remove", lambda _, name: removed.append(name))
    Output(LocalFolder(tmp_path / "out"), ["train"]).drop()
    assert removed.index("val.json") < removed.index("train.json")


def test_validation_data_of_its_own_stays(tmp_path: Path, tokenizer: Tokenizer) -> None:
    encode(tmp_path, tokenizer, "of its own", split="val")
    encode(tmp_path, tokenizer, "a")
    encode(tmp_path, tokenizer, "b", overwrite=True)
    assert decoded(tmp_path, tokenizer, "val") == f"of its own{END}"

    encode(tmp_path, tokenizer, f"a{END}" * 99, val_fraction=0.1, overwrite=True)
    train = decoded(tmp_path, tokenizer)
    encode(tmp_path, tokenizer, "another", split="val", overwrite=True)
    assert decoded(tmp_path, tokenizer) == train
