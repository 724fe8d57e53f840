"""Shards are cut by the text alone; with any size of theirs, the tokens are the same, and so are batches of them."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash

from shared.bpe import Tokenizer, train_bpe
from shared.bpe.training import TextFile
from shared.chat import DEFAULT_SPECIAL_TOKENS
from trainer.conversations.template import choose_template
from trainer.settings.encode import EncodeSettings
from trainer.text import sections, sources
from trainer.text.sections import Section, divide
from trainer.text.sources import open_inputs
from trainer.tokens import parallel_encoder, sharded_array
from trainer.tokens.encode import encode_files
from trainer.tokens.packed_windows import open_windows
from trainer.tokens.token_file import TokenFile, TokenFileError

END = "<|endoftext|>"
SEPARATOR = END.encode()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 500))
    monkeypatch.setattr(parallel_encoder, "_RECORDS_BYTES", 500)
    monkeypatch.setattr(sections, "_BLOCK_BYTES", 64)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Short and long documents, white space, an empty file, records, and a file without a separator."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(3)
    words = ["the", "cat", "sat", "naïve", "中文", "\r\n", " "]
    documents = [" ".join(draw.choices(words, k=draw.choice([0, 1, 9, 60]))) for _ in range(150)]
    (folder / "a.txt").write_bytes(f"{END}\n".join(documents).encode() + SEPARATOR + b" \n")
    (folder / "b.txt").touch()
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    (folder / "d.txt").write_bytes(" ".join(draw.choices(words, k=2000)).encode())
    return [folder / name for name in ("a.txt", "b.txt", "c.jsonl", "d.txt")]


def whole_tokens(folder: Path, name: str = "train") -> list[int]:
    return TokenFile.open(folder, name).tokens.tolist()


@pytest.mark.parametrize("val_fraction", [None, 0.2])
@pytest.mark.parametrize(("shard_tokens", "threads"), [(60, 1), (1000, 3), (10**9, 2)])
def test_tokens_do_not_depend_on_the_shards(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[Path], shard_tokens: int, threads: int, val_fraction: float | None
) -> None:
    settings = EncodeSettings(shard_tokens=shard_tokens, threads=threads, val_fraction=val_fraction)
    report = encode_files(texts, tokenizer, tmp_path / "shards", settings)
    one = encode_files(texts, tokenizer, tmp_path / "one", EncodeSettings(val_fraction=val_fraction))
    for name, manifest in report.manifests.items():
        assert len(one.manifests[name].shards) == 1
        assert whole_tokens(tmp_path / "shards", name) == whole_tokens(tmp_path / "one", name)
        assert [(source.documents, source.ends_with_separator) for source in manifest.sources] == [
            (source.documents, source.ends_with_separator) for source in one.manifests[name].sources
        ]
        assert (manifest.documents, manifest.bytes) == (one.manifests[name].documents, one.manifests[name].bytes)
        TokenFile.open(tmp_path / "shards", name).verify()
        names = [shard.file for shard in manifest.shards]
        assert names == sorted(names)
        for shard in manifest.shards:
            ids = np.fromfile(tmp_path / "shards" / shard.file, "<u2")
            assert 0 < len(ids) == shard.count <= shard_tokens
            assert int((ids == tokenizer.end_of_text_id).sum()) == shard.documents
            assert len(tokenizer.decode_bytes(ids[ids != tokenizer.end_of_text_id].tolist())) == shard.bytes
            assert xxhash.xxh3_128(ids.tobytes()).hexdigest() == shard.hash
    assert {path.name for path in (tmp_path / "shards").glob("*.bin")} == {
        shard.file for manifest in report.manifests.values() for shard in manifest.shards
    }


def test_a_document_that_fits_into_a_shard_is_not_divided(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[Path]
) -> None:
    """With three bytes a token or fewer, as here, no part is cut within one."""
    manifest = encode_files(texts[:3], tokenizer, tmp_path, EncodeSettings(shard_tokens=400)).manifests["train"]
    assert len(manifest.shards) > 10
    lengths = np.diff(np.flatnonzero(np.array(whole_tokens(tmp_path)) == tokenizer.end_of_text_id), prepend=-1)
    assert lengths.max() < 400
    for shard in manifest.shards[:-1]:
        ids = np.fromfile(tmp_path / shard.file, "<u2").tolist()
        rest = ids[len(ids) - ids[::-1].index(tokenizer.end_of_text_id) :]
        assert tokenizer.decode(rest).isspace() or not rest  # white space at the end of a file


@pytest.mark.parametrize("shard_tokens", [7, 400])
def test_the_end_is_held_out_over_several_shards(tmp_path: Path, tokenizer: Tokenizer, shard_tokens: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"the cat sat on the mat\n" * 30 + SEPARATOR + b"\n")
    expected = encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "one", EncodeSettings(val_fraction=0.3))
    settings = EncodeSettings(val_fraction=0.3, shard_tokens=shard_tokens)
    report = encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "shards", settings)
    assert expected.end_is_held_out
    assert report.end_is_held_out
    for name in ("train", "val"):
        assert whole_tokens(tmp_path / "shards", name) == whole_tokens(tmp_path / "one", name)
        assert len(report.manifests[name].shards) > 1 or shard_tokens > 7
    listed = {shard.file for manifest in report.manifests.values() for shard in manifest.shards}
    assert {path.name for path in (tmp_path / "shards").glob("*.bin")} == listed
    assert encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "shards", settings).manifests == report.manifests


def test_masks_are_divided_with_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"prompt": "the cat {n}", "response": "sat {n * n}"}}\n' for n in range(60)))
    specials = [END, *DEFAULT_SPECIAL_TOKENS]
    tokenizer = train_bpe(["the cat sat on the mat.\n" * 9], 270, special_tokens=specials).tokenizer
    template = choose_template(None, tmp_path, tokenizer)
    files = []
    for shard_tokens in (40, 10**6):
        settings = EncodeSettings(chat=True, shard_tokens=shard_tokens)
        folder = tmp_path / str(shard_tokens)
        manifest = encode_files([path], tokenizer, folder, settings, template=template).manifests["train"]
        files.append(TokenFile.open(folder, "train"))
        files[-1].verify()
        assert manifest.counted == sum(shard.counted or 0 for shard in manifest.shards) > 0
    assert len(files[0].manifest.shards) > 10
    assert files[0].tokens.tolist() == files[1].tokens.tolist()
    assert files[0].read_mask(0, len(files[0])).tolist() == files[1].read_mask(0, len(files[1])).tolist()
    windows = [open_windows("packed", file, 80, 1) for file in files]
    for number in range(5):
        for one, other in zip(windows[0].batch(number, 3), windows[1].batch(number, 3), strict=True):
            assert one.equal(other)


@pytest.mark.parametrize("order", ["epochs", "uniform"])
def test_batches_do_not_depend_on_the_shards(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[Path], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on how many files are open at once."""
    monkeypatch.setattr(sharded_array, "_MOST_OPEN", 3)
    for shard_tokens in (70, 10**6):
        encode_files(texts, tokenizer, tmp_path / str(shard_tokens), EncodeSettings(shard_tokens=shard_tokens))
    files = [TokenFile.open(tmp_path / name, "train") for name in ("70", "1000000")]
    assert len(files[0].manifest.shards) > 30
    first, second = (open_windows(order, file, 32, 5) for file in files)  # type: ignore[arg-type]
    for number in range(20):
        for one, other in zip(first.batch(number, 4), second.batch(number, 4), strict=True):
            assert one.equal(other)


def test_a_shard_that_was_replaced_and_is_opened_again_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_array, "_MOST_OPEN", 2)
    encode_files(texts, tokenizer, tmp_path, EncodeSettings(shard_tokens=200))
    file = TokenFile.open(tmp_path, "train")
    before = file.tokens
    last = tmp_path / file.manifest.shards[0].file
    content = last.read_bytes()
    last.unlink()
    last.write_bytes(content)
    with pytest.raises(TokenFileError, match=rf"{last.name} was replaced while it was in use"):
        file.read(0, 4)
    assert file.read(len(before) - 4, len(before)).tolist() == before[-4:].tolist()


def test_one_shard_alone_is_not_taken_for_all(tmp_path: Path, tokenizer: Tokenizer, texts: list[Path]) -> None:
    encode_files(texts, tokenizer, tmp_path)
    for name in ("train.json", "train.bin"):
        assert len(TokenFile.open_path(tmp_path / name)) > 100
    with pytest.raises(TokenFileError, match=r"train-00000\.bin is one of several shards; name .* train\.json"):
        TokenFile.open_path(tmp_path / "train-00000.bin")


@pytest.mark.parametrize(
    ("data", "size", "expected"),
    [
        (b"abc", 3, [(0, None)]),
        (b"aa|bb|cc|", 3, [(0, 6), (6, None)]),  # behind the first separator that follows
        (b"aa|bb|cc|dd", 2, [(0, 3), (3, 6), (6, 9), (9, None)]),
        (b"aa|bb|\n", 4, [(0, None)]),  # white space alone is no part
        (b"aaaa bbbb cccc dddd", 5, [(0, 9), (9, 14), (14, None)]),  # no separator: between pretokens
        (b"aaaa" + b" " * 40, 5, [(0, None)]),  # not in white space, which may follow the last document
        (b"a|" + b" " * 40 + b"|b", 5, [(0, 43), (43, None)]),
        (b"", 5, [(0, None)]),
    ],
)
def test_where_texts_are_cut(
    tmp_path: Path, data: bytes, size: int, expected: list[tuple[int, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "_BLOCK_BYTES", 4)
    (tmp_path / "a.txt").write_bytes(data)
    parts = divide(open_inputs([tmp_path / "a.txt"], text_field="text"), "|", size, at_any_pretoken=True)
    assert parts == [(Section(0, *bounds),) for bounds in expected]
    if b" " in data:
        whole = divide(open_inputs([tmp_path / "a.txt"], text_field="text"), "|", size, at_any_pretoken=False)
        assert all(end is None or data[:end].endswith(b"|") for [(_, _, end)] in whole)


def test_a_separator_that_overlaps_itself_is_no_place_to_cut(tmp_path: Path) -> None:
    """Of three line ends, the first two are one: only a reader of the whole text can know."""
    (tmp_path / "a.txt").write_bytes(b"a\n\n\nb" * 50)
    inputs = open_inputs([tmp_path / "a.txt"], text_field="text")
    assert divide(inputs, "\n\n", 9, at_any_pretoken=True) == [(Section(0),)]


def test_parts_take_small_files_together(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"aaaa|bbbb|")
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n' * 3)
    inputs = open_inputs([tmp_path], text_field="text")
    parts = divide(inputs, "|", 20, at_any_pretoken=True)
    assert parts == [
        (Section(0), Section(1)),
        (Section(2), Section(3)),
        (Section(4), Section(5, 0, 14)),  # a line
        (Section(5, 14),),
    ]
