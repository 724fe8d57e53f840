import gc
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from trainer.settings.encode import EncodeSettings
from trainer.storage.folder import LocalFolder
from trainer.tokens.assembly import manifest_of
from trainer.tokens.job import EncodingJob
from trainer.tokens.output import Output
from trainer.tokens.shard_writer import ShardWriter
from trainer.tokens.token_file import TokenFile, TokenFileError, dtype_for


def tokenizer_of(vocab_size: int) -> Tokenizer:
    """The bytes, and an end-of-text token with the highest id."""
    tokens = {byte: bytes([byte]) for byte in range(256)}
    return Tokenizer(Vocabulary(tokens, (), (AddedToken(vocab_size - 1, "<|endoftext|>"),), PATTERNS["gpt2"]))


def write(folder: Path, vocab_size: int = 300, ids: tuple[int, ...] = (97, 98, 299)) -> TokenFile:
    job = EncodingJob([], tokenizer_of(vocab_size), EncodeSettings(), vocab_size - 1)
    output = Output(LocalFolder(folder), ["train"])
    with output.scratch() as scratch:
        writer = ShardWriter(job.target(output.folder, scratch), "train-00000")
        writer.write(np.array(ids))
        output.commit({"train": manifest_of(job, writer.finish(), ())})
    return TokenFile.open(folder, "train")


def test_a_shard_that_is_sent_to_the_disk_while_it_grows(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 300, 5_000_000)  # more than twice what is sent at once
    job = EncodingJob([], tokenizer_of(300), EncodeSettings(), 299)
    writer = ShardWriter(job.target(LocalFolder(tmp_path), tmp_path), "train-00000")
    for begin in range(0, len(ids), 700_000):
        writer.write(ids[begin : begin + 700_000])
    (shard,) = writer.finish()
    written = (tmp_path / shard.file).read_bytes()
    assert np.array_equal(np.frombuffer(written, np.uint16), ids)
    assert shard.hash == xxhash.xxh3_128(written).hexdigest()


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "train.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65535, "uint16"), (65536, "uint16"), (65537, "uint32"), (100_000, "uint32")]
)
def test_B75_the_highest_id_survives(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    file = write(tmp_path, vocab_size, (97, vocab_size - 1))
    assert file.tokens.tolist() == [97, vocab_size - 1]
    assert file.manifest.dtype == file.tokens.dtype.name == dtype
    assert (tmp_path / "train-00000.bin").stat().st_size == 2 * dtype_for(vocab_size).itemsize
    assert file.manifest.bytes == 1
    file.verify()


def test_B75_another_dtype_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    change_manifest(tmp_path, dtype="uint32")
    with pytest.raises(TokenFileError, match="uint32"):
        TokenFile.open(tmp_path, "train")


@pytest.mark.parametrize("size", [0, 3, 4, 8])
def test_B79_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    write(tmp_path)
    (tmp_path / "train-00000.bin").write_bytes(bytes(size))
    with pytest.raises(TokenFileError, match=rf"train-00000\.bin has {size} bytes, .* 3 tokens of 2 bytes"):
        TokenFile.open(tmp_path, "train")


def test_B79_an_empty_file_is_refused_even_if_its_manifest_says_so(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train-00000.bin").write_bytes(b"")
    manifest = json.loads((tmp_path / "train.json").read_text())
    change_manifest(tmp_path, count=0, documents=0, bytes=0, shards=[{**manifest["shards"][0], "count": 0}])
    with pytest.raises(TokenFileError, match="documents is 0, but that of its shards is another one"):
        TokenFile.open(tmp_path, "train")
    change_manifest(tmp_path, shards=[])
    with pytest.raises(TokenFileError, match="has no tokens"):
        TokenFile.open(tmp_path, "train")


def test_B79_an_id_beyond_the_vocabulary_is_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.tokens.token_file._BLOCK_IDS", 2)
    file = write(tmp_path, 300, (0, 1, 2, 255, 299))
    (tmp_path / "train-00000.bin").write_bytes(np.array([0, 1, 2, 300, 299], dtype="<u2").tobytes())
    with pytest.raises(TokenFileError, match="token 3 is 300, beyond a vocabulary of 300; encode the text again"):
        file.verify()


def test_B79_a_read_only_file_is_fine(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train-00000.bin").chmod(0o444)
    assert TokenFile.open(tmp_path, "train").tokens.tolist() == [97, 98, 299]


@pytest.mark.parametrize("name", ["train-00000.bin", "train.json"])
def test_a_missing_half_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TokenFileError, match=name):
        TokenFile.open(tmp_path, "train")


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"count": "3"},
        {"count": -1},
        {"vocab_size": None},
        {"extra": 1},
        {"sources": 5},
        {"sources": [{}]},
        {"shards": []},
        {"shards": [{"file": "../a.bin", "part": 0, "count": 3, "documents": 1, "bytes": 2, "hash": ""}]},
        {"shards": [{"file": 5, "part": 0, "count": 3, "documents": 1, "bytes": 2, "hash": ""}]},
        {"shards": [{"file": "a.bin", "part": 0, "count": 2, "documents": 1, "bytes": 2, "hash": ""}]},
        {"hash": "md5"},
        {"parts": [5]},
        {"chat_template": "0"},
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write(tmp_path)
    change_manifest(tmp_path, **changes)
    with pytest.raises(TokenFileError, match=r"train\.json.*; encode the text again"):
        TokenFile.open(tmp_path, "train")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    write(tmp_path)
    (tmp_path / "train.json").write_bytes(data)
    with pytest.raises(TokenFileError, match=r"train\.json.*; encode the text again"):
        TokenFile.open(tmp_path, "train")


def test_a_manifest_that_never_ends_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train.json").unlink()
    os.mkfifo(tmp_path / "train.json")
    with pytest.raises(TokenFileError, match=r"train\.json cannot be read: expected a regular file, found a FIFO"):
        TokenFile.open(tmp_path, "train")


def test_another_tokenizer_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert TokenFile.open(tmp_path, "train", fingerprint=file.manifest.fingerprint).tokens.size == 3
    with pytest.raises(TokenFileError, match=rf"{file.manifest.fingerprint}.*0000"):
        TokenFile.open(tmp_path, "train", fingerprint="0000")


def test_existing_files_are_refused_unless_allowed(tmp_path: Path) -> None:
    write(tmp_path)
    Output(LocalFolder(tmp_path), ["val"]).refuse_existing()
    (tmp_path / "train.json").unlink()
    with pytest.raises(TokenFileError, match=r"bin exists; choose another --output, or replace it with --overwrite"):
        Output(LocalFolder(tmp_path), ["val", "train"]).refuse_existing()


def test_ids_that_were_changed_are_told_by_their_sum(tmp_path: Path) -> None:
    """B79: another id, of the vocabulary still."""
    file = write(tmp_path)
    content = bytearray((tmp_path / "train-00000.bin").read_bytes())
    content[0] ^= 1
    (tmp_path / "train-00000.bin").write_bytes(content)
    with pytest.raises(
        TokenFileError, match=r"train-00000.bin is not what was written: its xxh3_128 is [0-9a-f]{32}, its"
    ):
        file.verify()


@pytest.mark.case("D50")
@pytest.mark.parametrize("size", [0, 3])
def test_a_file_that_is_cut_off_while_it_is_open_is_told(tmp_path: Path, size: int) -> None:
    file = write(tmp_path)
    os.truncate(tmp_path / "train-00000.bin", size)
    for read in (file.verify, lambda: file.read(1, 3), lambda: file.tokens, lambda: list(file.blocks(2))):
        with pytest.raises(
            TokenFileError, match=r"train-00000\.bin was cut short while it was read: it has fewer than \d tokens"
        ):
            read()


@pytest.mark.case("D50")
def test_a_file_that_is_overwritten_while_it_is_open_gives_no_id_beyond_the_vocabulary(tmp_path: Path) -> None:
    file = write(tmp_path)
    with (tmp_path / "train-00000.bin").open("r+b") as stream:
        stream.write(b"a\0\xff\xff")
    with pytest.raises(TokenFileError, match=r"train-00000\.bin: token 1 is 65535, beyond a vocabulary of 300"):
        file.read(0, 3)
    assert file.read(2, 3).tolist() == [299]


@pytest.mark.case("D50")
def test_an_open_file_is_closed_with_the_last_that_needs_it(tmp_path: Path) -> None:
    file = write(tmp_path)
    name = str(tmp_path / "train-00000.bin")
    opened = [path for path in Path("/proc/self/fd").iterdir() if os.path.realpath(path) == name]
    assert len(opened) == 1
    del file
    gc.collect()
    assert os.path.realpath(opened[0]) != name


@pytest.mark.parametrize("has_mask", [False, True])
def test_folders_of_earlier_versions_are_read(tmp_path: Path, has_mask: bool) -> None:
    """NAME.bin with SHA-256 in its manifest, of version 1, or 2 with a mask."""
    ids, mask = np.array([97, 98, 299], "<u2"), np.array([0, 1, 1], np.uint8)
    ids.tofile(tmp_path / "train.bin")
    mask.tofile(tmp_path / "train.mask")
    digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in (ids, mask)]
    source = {"path": "a.txt", "bytes": 2, "sha256": "0", "documents": 1, "ends_with_separator": False}
    manifest = {
        "version": 1 + has_mask,
        "dtype": "uint16",
        "count": 3,
        "documents": 1,
        "vocab_size": 300,
        "fingerprint": "f",
        "end_of_text_id": 299,
        "bytes": 2,
        "sha256": digests[0],
        "sources": [source],
    }
    if has_mask:
        manifest["mask"] = {"counted": 2, "sha256": digests[1], "chat_template": "t"}
    (tmp_path / "train.json").write_text(json.dumps(manifest))
    for file in (TokenFile.open(tmp_path, "train"), TokenFile.open_path(tmp_path / "train.bin")):
        file.verify()
        assert file.tokens.tolist() == ids.tolist()
        assert file.read_mask(0, 3).tolist() == ([0, 1, 1] if has_mask else [1, 1, 1])
        # What runs have recorded of such data, which they compare when they are resumed.
        masked = {"counted": 2, "mask_sha256": digests[1]} if has_mask else {}
        assert file.manifest.identity() == {"tokens": 3, "sha256": digests[0], **masked}
    (tmp_path / "train.bin").write_bytes(b"a\0b\0c\0")
    with pytest.raises(TokenFileError, match=r"train\.bin is not what was written: its sha256 is"):
        TokenFile.open(tmp_path, "train").verify()
