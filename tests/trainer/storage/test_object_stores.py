"""The whole way from text to training in an object store: see tests/trainer/stores.py.

The server of S3 is moto's, in a process of its own (`make ray` installs it).
"""

import errno
import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from shared.bpe import Tokenizer
from shared.bpe.training import SourceError, Specials
from tests.trainer.made_text import made_documents
from tests.trainer.stores import STORES, bucket_of
from trainer.commands.show import show
from trainer.errors import TrainerError
from trainer.settings.encode import EncodeSettings
from trainer.settings.train import TrainSettings
from trainer.settings.vocab import VocabSettings
from trainer.storage import remote_folder
from trainer.storage.cache import local_copy
from trainer.storage.folder import StorageError
from trainer.storage.remote import display_path, files_below, local_path, url_of
from trainer.storage.remote_folder import open_folder
from trainer.text import remote_text
from trainer.text.sources import expand
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.dataset import open_training_data
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile, TokenFileError
from trainer.training.trainer import train

END = "<|endoftext|>"
NAMES = ("a.txt", "b.jsonl", "c.txt.gz", "d.parquet", "e.jsonl.zst")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Names below an empty folder of an object store."""
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_text, "_REQUEST_BYTES", 5000)
    monkeypatch.setattr(remote_folder, "_BLOCK_BYTES", 1000)
    folder = f"{bucket_of(request, monkeypatch)}/{tmp_path.name}"
    return lambda name: Path(f"{folder}/{name}")


@pytest.fixture
def texts(text_file: Path, tmp_path: Path) -> Path:
    """The toy language in every format."""
    folder = tmp_path / "texts"
    folder.mkdir()
    data = text_file.read_text(encoding="utf-8")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in data.split(END)[:100])
    (folder / "a.txt").write_text(data, encoding="utf-8")
    (folder / "b.jsonl").write_text(lines)
    (folder / "c.txt.gz").write_bytes(gzip.compress(data.encode()))
    parquet.write_table(pyarrow.table({"text": data.split(END)[:80]}), folder / "d.parquet")
    (folder / "e.jsonl.zst").write_bytes(bytes(pyarrow.compress(lines.encode(), "zstd", asbytes=True)))
    return folder


def upload(folder: Path, to: Path) -> None:
    for path in folder.iterdir():
        upload_bytes(path.read_bytes(), to / path.name)


def upload_bytes(content: bytes, to: Path) -> None:
    store, name = fsspec.core.url_to_fs(url_of(to))
    store.pipe_file(name, content)


def contents(folder: Path) -> dict[str, bytes]:
    store, name = fsspec.core.url_to_fs(url_of(folder))
    store.invalidate_cache()
    return {Path(key).name: store.cat_file(key) for key in store.find(name)}


def test_from_text_to_a_model(
    store: Callable[[str], Path],
    texts: Path,
    tmp_path: Path,
    settings: TrainSettings,
    change: Callable[..., TrainSettings],
) -> None:
    """Byte for byte what is written from and to this machine's disk; then an interrupted upload, and training."""
    upload(texts, store("in"))
    vocabulary = VocabSettings(vocab_size=290)
    train_tokenizer([texts], tmp_path / "tokenizer", vocabulary)
    train_tokenizer([store("in")], store("tokenizer"), vocabulary)
    found = contents(store("tokenizer"))
    assert {*found} == {path.name for path in (tmp_path / "tokenizer").iterdir()}
    assert found["tokenizer.json"] == (tmp_path / "tokenizer" / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer")
    options = EncodeSettings(val_fraction=0.1, shard_tokens=1500)
    local = encode_files([texts / name for name in NAMES], tokenizer, tmp_path / "tokens", options)
    report = encode_files([store(f"in/{name}") for name in NAMES], tokenizer, store("tokens"), options)
    assert len(report.manifests["train"].shards) > 8
    for name, manifest in report.manifests.items():
        assert manifest.shards == local.manifests[name].shards
        assert [source.hash for source in manifest.sources] == [s.hash for s in local.manifests[name].sources]
        assert [source.path for source in manifest.sources] == [display_path(store(f"in/{each}")) for each in NAMES]
    for name, data in contents(store("tokens")).items():
        assert name in {"train.json", "val.json"} or data == (tmp_path / "tokens" / name).read_bytes()
    # The same command keeps what is whole and repairs what is not.
    filesystem, key = fsspec.core.url_to_fs(url_of(store("tokens")))
    filesystem.pipe_file(f"{key}/train-00001.bin", b"damaged")
    again = encode_files([store(f"in/{name}") for name in NAMES], tokenizer, store("tokens"), options)
    assert again.parts_kept == len(report.manifests["train"].parts) - 1
    assert again.manifests == report.manifests
    model = train(change(settings, data=store("tokens"), output=tmp_path / "remote", max_steps=3))
    other = train(change(settings, data=tmp_path / "tokens", output=tmp_path / "local", max_steps=3))
    assert (model / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    # Shards were copied and compared; one that is damaged there is refused, and a copy that is damaged here replaced.
    [copy] = (tmp_path / "cache").rglob("train-00000.bin")
    data = copy.read_bytes()
    copy.write_bytes(b"x" * len(data))
    open_training_data(store("tokens"))
    assert copy.read_bytes() == data
    copy.unlink()
    filesystem.pipe_file(f"{key}/train-00000.bin", b"x" * len(data))
    with pytest.raises(StorageError, match=r"train-00000\.bin is not what was written"):
        open_training_data(store("tokens"))


def test_an_interrupted_run_continues_in_the_store(store: Callable[[str], Path], texts: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], [END])
    upload(texts, store("in"))
    inputs = [store("in/*.txt"), store("in/b.jsonl")]
    options = EncodeSettings(shard_tokens=5000)
    encode_files(inputs, tokenizer, store("whole"), options)

    class KilledError(BaseException):
        pass

    calls = 0

    def kill(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KilledError

    with pytest.raises(KilledError):
        encode_files(inputs, tokenizer, store("out"), options, progress=kill)
    assert "train.json" not in contents(store("out"))
    report = encode_files(inputs, tokenizer, store("out"), options)
    assert report.parts_kept
    assert contents(store("out")) == contents(store("whole"))
    with pytest.raises(TokenFileError, match=r"out/train\.json exists"):
        encode_files(inputs, tokenizer, store("out"), EncodeSettings())


def test_of_two_runs_the_later_one_continues(store: Callable[[str], Path], texts: Path) -> None:
    tokenizer = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], [END])
    options = EncodeSettings(shard_tokens=5000)
    encode_files([texts / "a.txt"], tokenizer, store("whole"), options)
    calls: list[int] = []

    def begin_another(_: int) -> None:
        calls.append(_)
        if len(calls) == 3:
            encode_files([texts / "a.txt"], tokenizer, store("out"), options)

    with pytest.raises(StorageError, match=r"another run has begun .*/out: this one stops, and that one continues"):
        encode_files([texts / "a.txt"], tokenizer, store("out"), options, progress=begin_another)
    assert contents(store("out")) == contents(store("whole"))


def test_a_text_that_changes_is_noticed(store: Callable[[str], Path], tmp_path: Path) -> None:
    """Also if its size stays: each store says so in another field."""
    upload_bytes(b"one " * 2000, store("a.txt"))
    text = remote_text.RemoteText(store("a.txt"))
    assert b"".join(chunk.read().tobytes() for chunk in text.chunks(Specials(), 0)) == b"one " * 2000
    upload_bytes(b"two " * 2000, store("a.txt"))
    with pytest.raises(SourceError, match=r"/a\.txt was changed"):
        list(text.chunks(Specials(), 0))


def test_what_is_missing_is_named(store: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"://bucket/.*/nothing\.txt cannot be read: there is no such file"):
        encode_files([store("nothing.txt")], _bytes(), tmp_path)
    with pytest.raises(StorageError, match="cannot be read: there is no such file or bucket"):
        TokenFile.open(store("none"), "train")


@pytest.mark.ray
def test_errors_of_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(StorageError, match=r"s3://none/out.* cannot be written: .*bucket"):
        encode_files([tmp_path / "a.txt"], _bytes(), Path("s3://none/out"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(CorpusError, match=r"access is denied, or no credentials were found"):
        encode_files([Path(f"{s3}/a.txt")], _bytes(), tmp_path / "out")
    fsspec.filesystem("s3").clear_instance_cache()


def test_libraries_that_are_not_installed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(CorpusError, match=r"gs://a/b\.txt cannot be read: .*pip install .* -e '\.\[gs\]'"):
        encode_files([Path("gs://a/b.txt")], _bytes(), tmp_path)
    with pytest.raises(TrainerError, match=r"zzz:// is not known; use a path, s3://"):
        open_folder(Path("zzz://a/b"))


def test_addresses_and_paths() -> None:
    assert url_of(Path("s3://bucket/a b/c.txt")) == "s3://bucket/a b/c.txt"
    assert url_of(Path("s3://bucket") / "c") == url_of(Path("S3://bucket/c")) == "s3://bucket/c"
    for path in ("a/b", "/a", "C:/x", "file:///tmp/x", "a:b/c", "/s3:/x"):
        assert url_of(Path(path)) is None
    assert local_path(Path("file:///tmp/x")) == Path("/tmp/x")
    assert local_path(Path("/tmp/x")) == Path("/tmp/x")


def _bytes() -> Tokenizer:
    return Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], [END])


def test_a_store_that_does_not_answer_has_not_said_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's isfile() says so, and an existing tokenizer would be replaced."""
    folder = open_folder(Path("memory://bucket/there"))
    assert not folder.exists("tokenizer.json")

    def down(*_: object, **__: object) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", down)
    with pytest.raises(StorageError, match="no answer"):
        folder.exists("tokenizer.json")


def test_names_that_look_like_globs_and_their_order(tmp_path: Path) -> None:
    folder = Path(f"memory://bucket/{tmp_path.name}/names")
    names = ["a/b.txt", "a-b.txt", "a[1].txt", "b.bin"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"text")
        fsspec.filesystem("memory").pipe_file(url_of(folder / name), b"text")
    assert expand(folder / "a[1].txt") == [folder / "a[1].txt"]
    assert expand(folder / "a*.txt") == [folder / "a-b.txt", folder / "a[1].txt"]
    assert [path.relative_to(folder) for path in expand(folder)] == [p.relative_to(tmp_path) for p in expand(tmp_path)]


def test_what_was_deleted_there_is_not_taken_from_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    system, url = fsspec.filesystem("memory"), f"memory://bucket/{tmp_path.name}/copied"
    for name in ("train.json", "val.json", "templates/a.jinja"):
        system.pipe_file(f"{url}/{name}", b"{}")
    assert {path.name for path in local_copy(Path(url)).rglob("*.j*")} == {"train.json", "val.json", "a.jinja"}
    (local_copy(Path(url)) / ".checked.json").write_text("{}")
    system.rm_file(f"{url}/val.json")
    system.rm_file(f"{url}/templates/a.jinja")
    assert {path.name for path in local_copy(Path(url)).rglob("*.j*")} == {"train.json", ".checked.json"}


def test_a_local_address_is_verified_too(token_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tokens"
    shutil.copytree(token_folder, copy)
    data = bytearray((copy / "train-00000.bin").read_bytes())
    data[0] ^= 1
    (copy / "train-00000.bin").write_bytes(data)
    with pytest.raises(TokenFileError, match="is not what was written"):
        open_training_data(Path(f"file://{copy}"))


def test_copies_that_have_no_room_are_not_begun(
    token_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    folder = Path(f"memory://bucket/{tmp_path.name}/tokens")
    upload(token_folder, folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(StorageError, match=r"has 0\.0 GB free; delete copies .*cache.objects, or .*OWNLM_CACHE_DIR"):
        open_training_data(folder)
    assert not [*(tmp_path / "cache").rglob("*.bin")]


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_store(
    token_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    folder = Path(f"memory://bucket/{tmp_path.name}/tokens")
    upload(token_folder, folder)
    with pytest.raises(
        StorageError, match=r"cannot be copied to .*/cache/objects/\w+: Not a directory; name another place"
    ):
        open_training_data(folder)
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", full_disk)
    with pytest.raises(StorageError, match=r"cannot be copied to .*/other/objects/\w+: No space left on device; name"):
        open_training_data(folder)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_show_reads_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("text to show")
    folder = Path(f"memory://bucket/{tmp_path.name}/shown")
    encode_files([tmp_path / "a.txt"], _bytes(), folder)
    for named in (folder, folder / "train.json"):
        show(named)
        assert "text to show" in capsys.readouterr().out


def test_held_out_text(tmp_path: Path) -> None:
    folder = Path(f"memory://bucket/{tmp_path.name}")
    for name in ("a.txt", "b.txt"):
        fsspec.filesystem("memory").pipe_file(url_of(folder / name), f"the text of {name} ".encode() * 20)
    report = train_tokenizer(
        [folder / "a.txt"], tmp_path / "out", VocabSettings(vocab_size=262, held_out=str(folder / "b.txt"))
    )
    assert report.held_out is not None
    assert report.held_out.name == url_of(folder / "b.txt")


def test_as_much_is_held_out_as_of_a_file_on_a_disk(tmp_path: Path) -> None:
    """Else the tokenizer would depend on where the text is."""
    text = END.join(made_documents(1_300_000)).encode()
    given = [tmp_path / "a.txt", Path(f"memory://bucket/{tmp_path.name}/a.txt")]
    given[0].write_bytes(text)
    upload_bytes(text, given[1])
    samples = []
    for number, path in enumerate(given):
        report = train_tokenizer([path], tmp_path / str(number), VocabSettings(vocab_size=270, held_out="1K"))
        assert report.held_out is not None
        samples.append(report.held_out.parts)
    assert samples[0] == samples[1]
    assert 1024 <= len(samples[0][0]) < 1400
    one, other = ((tmp_path / name / "tokenizer.json").read_bytes() for name in "01")
    assert one == other


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    path = Path("ftp://me:secret@host/a@b:c.txt")
    assert display_path(path) == "ftp://me:***@host/a@b:c.txt"
    assert display_path(Path("s3://bucket/a:b@c")) == "s3://bucket/a:b@c"
    with pytest.raises(CorpusError, match=r"ftp://me:\*\*\*@host/.* the address has a password") as error:
        encode_files([path], _bytes(), tmp_path)
    assert "secret" not in str(error.value)


def test_names_that_lead_out_of_a_folder_are_left_out() -> None:
    """Write access to a store must not give write access to this machine: S3 allows ../ in names."""

    class Store:
        def find(self, folder: str, detail: bool) -> dict[str, dict[str, int]]:
            names = ("a.json", "b/c.json", "b/../../x.json", "../y.json", "")
            return {f"{folder}/{name}": {"size": len(name)} for name in names if detail}

    assert files_below(Store(), "bucket/folder") == {"a.json": 6, "b/c.json": 8}
