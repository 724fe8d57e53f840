"""Token arrays made elsewhere: accepted where they are exactly the tokenizer's, refused otherwise."""

import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import xxhash

from shared.bpe import Tokenizer
from shared.lm import load_model_folder
from tests.docs.pages import DOCS, run_page
from trainer.commands.encode import encode
from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.settings.train import TrainSettings
from trainer.tokens import token_array
from trainer.tokens.adoption import adopt_array
from trainer.tokens.dataset import open_training_data
from trainer.tokens.token_array import TokenArray
from trainer.tokens.token_file import Manifest, TokenFile, TokenFileError
from trainer.training.trainer import train


def adopt(
    path: Path, tokenizer: Path, output: Path | None = None, dtype: str | None = None, **options: Any
) -> Manifest:
    array = TokenArray.open(path, dtype)
    return adopt_array(array, Tokenizer.from_files(tokenizer), output, EncodeSettings(**options))


@pytest.fixture
def ids(token_folder: Path) -> np.ndarray[Any, Any]:
    """The training ids of our own file."""
    return TokenFile.open(token_folder, "train").tokens


def _save_version_2(path: Path, ids: Any) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array(file, ids, version=(2, 0))


def _memmap(path: Path, ids: Any) -> str:
    """As nanoGPT's prepare.py writes its files."""
    array = np.memmap(path, dtype=np.uint16, mode="w+", shape=(len(ids),))
    array[:] = ids
    array.flush()
    return "uint16"


SAVED: dict[str, Callable[[Path, Any], str | None]] = {
    "np.save, uint16": np.save,
    "np.save, uint64": lambda path, ids: np.save(path, ids.astype(np.uint64)),
    "np.save, int64": lambda path, ids: np.save(path, ids.astype(np.int64)),
    "np.save, big-endian": lambda path, ids: np.save(path, ids.astype(">i4")),
    "np.save, version 2": _save_version_2,
    "tofile, uint16": lambda path, ids: (ids.tofile(path), "uint16")[1],
    "tofile, int32": lambda path, ids: (ids.astype(np.int32).tofile(path), "int32")[1],
    "tofile, big-endian": lambda path, ids: (ids.astype(">u2").tofile(path), ">u2")[1],
    "np.memmap": _memmap,
}


@pytest.mark.parametrize("how", SAVED)
def test_an_array_is_the_file_that_we_would_have_written(
    how: str, ids: Any, token_folder: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / ("array.npy" if "save" in how else "array.bin")
    dtype = SAVED[how](path, ids)
    manifest = adopt(path, tokenizer_folder, tmp_path / "out", dtype)
    own = TokenFile.open(token_folder, "train").manifest
    for name in (
        "version",
        "dtype",
        "count",
        "documents",
        "bytes",
        "vocab_size",
        "fingerprint",
        "end_of_text_id",
    ):
        assert getattr(manifest, name) == getattr(own, name), name
    assert [shard.hash for shard in manifest.shards] == [shard.hash for shard in own.shards]
    shards = [folder / "train-00000.bin" for folder in (tmp_path / "out", token_folder)]
    assert shards[0].read_bytes() == shards[1].read_bytes()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("train-00000.bin", "train.json", "tokenizer.json", "tokenizer_config.json")
    }
    [source] = manifest.sources
    assert (source.path, source.bytes, source.documents) == (str(path), path.stat().st_size, own.documents)
    assert source.hash == xxhash.xxh3_128(path.read_bytes()).hexdigest()
    assert source.ends_with_separator


def test_training_on_it_is_training_on_our_own(
    ids: Any, settings: TrainSettings, change: Callable[..., TrainSettings], tokenizer_folder: Path, tmp_path: Path
) -> None:
    """To the bit: the same identity, so that a run could even be resumed with it, and the same weights."""
    folder = tmp_path / "nanogpt"
    folder.mkdir()
    ids.tofile(folder / "train.bin")
    np.save(folder / "held_out.npy", TokenFile.open(settings.data, "val").tokens.astype(np.uint32))
    before = (folder / "train.bin").stat()
    adopt(folder / "train.bin", tokenizer_folder, dtype="uint16")
    adopt(folder / "held_out.npy", tokenizer_folder, folder, split="val")
    assert (folder / "train.bin").stat().st_mtime_ns == before.st_mtime_ns
    assert open_training_data(folder).identity() == open_training_data(settings.data).identity()
    train(settings)
    train(change(settings, data=folder, output=tmp_path / "other"))
    one, other = (load_model_folder(run / "model").model.state_dict() for run in (settings.output, tmp_path / "other"))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_a_file_of_gpt2_as_nanogpt_prepares_it(data_dir: Path, tmp_path: Path) -> None:
    """Ids by Hugging Face's tokenizers: ordinary text, and 50256 after each document."""
    files = [str(data_dir / "tokenizers/gpt2" / name) for name in ("vocab.json", "merges.txt")]
    gpt2 = tokenizers.ByteLevelBPETokenizer(*files)
    documents = (data_dir / "tinystories_valid.txt").read_text(encoding="utf-8").split("<|endoftext|>")[:50]
    ids = [token for text in documents for token in (*gpt2.encode(text).ids, 50256)]
    np.array(ids, dtype=np.uint16).tofile(tmp_path / "train.bin")
    manifest = adopt(tmp_path / "train.bin", data_dir / "tokenizers/gpt2/vocab.json", dtype="uint16")
    assert (manifest.count, manifest.documents) == (len(ids), 50)
    assert (manifest.bytes, manifest.end_of_text_id) == (len("".join(documents).encode()), 50256)
    data = open_training_data(tmp_path)
    assert (
        data.tokenizer.decode(data.train.tokens[:40].tolist()) == documents[0][: len(data.tokenizer.decode(ids[:40]))]
    )


def _refused(path: Path, tokenizer: Path, match: str, error: type[Exception] = TokenFileError, **options: Any) -> None:
    output = path.parent / "out"
    with pytest.raises(error, match=match):
        adopt(path, tokenizer, output, **options)
    assert not output.exists()


class _Trap:
    """Would leave a file if it were unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_arrays_that_are_no_ids_are_refused(ids: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    trap = np.array([_Trap(tmp_path / "trapped")], dtype=object)
    for array, match in (
        (ids.astype(np.float32), "values of type float32, and token ids are whole numbers"),
        (ids.astype(np.bool_), "values of type bool"),
        (ids[:100].reshape(10, 10), r"has the shape \(10, 10\); token ids are one row"),
        (np.array(5), r"has the shape \(\)"),
        (ids[:0], "its array has no numbers"),
        (np.array([(1, 2)], dtype=[("a", "u2"), ("b", "u2")]), "values of type void"),
        (trap, "pickled Python objects, which are never loaded"),
    ):
        np.save(path, array, allow_pickle=True)
        _refused(path, tokenizer_folder, match)
    assert not (tmp_path / "trapped").exists()
    np.save(path, ids)
    _refused(
        path, tokenizer_folder, "says that its numbers are <u2, not <u4; leave out --dtype", UsageError, dtype="uint32"
    )
    np.savez(tmp_path / "a.npz", ids)
    _refused(tmp_path / "a.npz", tokenizer_folder, r"expected an array of token ids named \.npy or \.bin", UsageError)
    (tmp_path / "a.bin").write_bytes(pickle.dumps(_Trap(tmp_path / "trapped")) * 2)
    with pytest.raises(TokenFileError):
        adopt(tmp_path / "a.bin", tokenizer_folder, tmp_path / "out", "uint16")
    assert not (tmp_path / "trapped").exists()


def test_damaged_npy_files_are_refused(ids: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, ids)
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    for data, match in (
        (b"", "is empty: it has 0 bytes"),
        (whole[:-1], r"after its header, but .* it was cut off, or something was added"),
        (whole + b"\0\0", "it was cut off, or something was added"),
        (whole[:header], "it was cut off"),
        (whole[: header // 2], "its header cannot be read"),
        (whole[:7], "its header cannot be read"),
        (whole[:6] + b"\x03\x00" + whole[8:], r"version 3\.0 of \.npy"),
        (whole[:6] + b"\x09\x00" + whole[8:], r"version 9\.0 of \.npy"),
        (whole[:10] + b"[" * (header - 10) + whole[header:], "its header cannot be read"),
    ):
        path.write_bytes(data)
        _refused(path, tokenizer_folder, match)


def test_flat_files_that_cannot_be_what_their_type_says(ids: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for data, dtype, match in (
        (ids.tobytes()[:-1], "uint16", "bytes, not a multiple of 2 as uint16 needs"),
        (ids.tobytes()[:6], "uint32", "6 bytes, not a multiple of 4"),
        (b"", "uint16", "is empty"),
        (ids.astype(">u2").tobytes(), "uint16", r"its bytes seem to be swapped: --dtype '>u2'"),
        (ids.tobytes(), ">u2", r"its bytes seem to be swapped: --dtype '<u2'"),
        (
            ids.astype(np.uint32).tobytes(),
            "uint16",
            "every second number is almost 0, so that they seem to have more bytes",
        ),
        (ids.astype(np.int64).tobytes(), "uint16", "every second number is almost 0"),
        (ids.astype(np.int64).tobytes(), "uint32", "every second number is almost 0"),
        (ids.astype(">u4").tobytes(), ">u2", "every second number is almost 0"),
        ((ids.astype(np.uint32) * 300).tobytes(), "uint16", "every second number is almost 0"),
        (ids[: len(ids) // 2 * 2].tobytes(), "uint32", r"number 0 is [\d,]+, not an id of this tokenizer"),
        (np.array([1, 2, 290], np.uint16).tobytes(), "uint16", r"number 2 is 290, not an id .* \(its highest is 289\)"),
        (np.array([1, -1], np.int32).tobytes(), "int32", "number 1 is -1, not an id"),
        (np.array([1, 1 << 63], np.uint64).tobytes(), "uint64", "number 1 is 9,223,372,036,854,775,808, not an id"),
        (np.array([20240520, 1, *[0] * 254], np.int32).tobytes(), "uint16", "header of 1024 bytes, as llm.c writes it"),
    ):
        path.write_bytes(data)
        _refused(path, tokenizer_folder, match, dtype=dtype)
    path.write_bytes(ids.tobytes())
    _refused(path, tokenizer_folder, "has no header .* such as --dtype uint16", UsageError)
    for dtype in ("float16", "object", "bool", "u2,u2", "3u2", "nothing", "", "S2"):
        _refused(path, tokenizer_folder, "is not a type of whole numbers", UsageError, dtype=dtype)
    _refused(tmp_path / "none.bin", tokenizer_folder, "none.bin cannot be read: No such file", dtype="uint16")
    (tmp_path / "folder.bin").mkdir()
    _refused(tmp_path / "folder.bin", tokenizer_folder, "expected a regular file, found a directory", dtype="uint16")
    os.mkfifo(tmp_path / "pipe.bin")
    _refused(tmp_path / "pipe.bin", tokenizer_folder, "expected a regular file, found a FIFO", dtype="uint16")


def test_an_id_without_a_token_is_refused(tmp_path: Path) -> None:
    """Ids may have gaps."""
    tokenizer = Tokenizer.from_vocab(
        {bytes([byte]): byte for byte in range(256)} | {b"ab": 300}, [(b"a", b"b")], ["<|endoftext|>"]
    )
    tokenizer.save(tmp_path / "tokenizer")
    np.save(tmp_path / "a.npy", np.array([300, 301, 299]))
    _refused(tmp_path / "a.npy", tmp_path / "tokenizer", "number 2 is 299, not an id")


def test_what_an_array_is_written_over(ids: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    ids.tofile(tmp_path / "train.bin")
    np.save(tmp_path / "ids.npy", ids)
    for array, match in (("ids.npy", r"is not named train\.bin"), ("train.bin", r"is not named val\.bin")):
        options = {"split": "val"} if array == "train.bin" else {}
        with pytest.raises(UsageError, match=match):
            adopt(tmp_path / array, tokenizer_folder, dtype="uint16", **options)
    ids.astype(np.uint32).tofile(tmp_path / "val.bin")
    with pytest.raises(
        UsageError, match="has numbers of type <u4; a token file of this tokenizer is a flat array of <u2"
    ):
        adopt(tmp_path / "val.bin", tokenizer_folder, dtype="uint32", split="val")
    np.save(tmp_path / "saved", ids)
    (tmp_path / "saved.npy").replace(tmp_path / "val.bin")  # an .npy file by another name
    with pytest.raises(UsageError, match="has a header; a token file"):
        adopt(tmp_path / "val.bin", tokenizer_folder, split="val")
    adopt(tmp_path / "train.bin", tokenizer_folder, tmp_path, dtype="uint16")  # the folder that it is in
    with pytest.raises(TokenFileError, match=r"train\.(json|bin) exists"):
        adopt(tmp_path / "train.bin", tokenizer_folder, dtype="uint16")
    adopt(tmp_path / "train.bin", tokenizer_folder, dtype="uint16", overwrite=True)
    with pytest.raises(TokenFileError, match=r"train\.(json|bin) exists"):
        adopt(tmp_path / "ids.npy", tokenizer_folder, tmp_path)
    other = Tokenizer.from_vocab(
        {bytes([byte]): byte for byte in range(256)}, [], [f"<{n}>" for n in range(40)] + ["<|endoftext|>"]
    )
    other.save(tmp_path / "other")
    with pytest.raises(TokenFileError, match="contains another tokenizer"):
        adopt(tmp_path / "ids.npy", tmp_path / "other", tmp_path, split="test")
    with pytest.raises(UsageError, match="--manifest-for takes an array as it is"):
        adopt(tmp_path / "ids.npy", tokenizer_folder, tmp_path / "out", val_fraction=0.1)
    (tmp_path / "ids.npy").replace(tmp_path / "train-00000.npy")
    with pytest.raises(UsageError, match="may be one of the files that are replaced"):
        adopt(tmp_path / "train-00000.npy", tokenizer_folder, tmp_path, overwrite=True)


def test_the_work_of_an_interrupted_encode_is_kept(ids: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", ids)
    state = tmp_path / "out" / "encode-state-train"
    state.mkdir(parents=True)
    (state / "job.json").write_text("{}")
    with pytest.raises(TokenFileError, match="the work of an interrupted run of `encode`"):
        adopt(tmp_path / "ids.npy", tokenizer_folder, tmp_path / "out")
    assert (state / "job.json").exists()
    adopt(tmp_path / "ids.npy", tokenizer_folder, tmp_path / "out", overwrite=True)
    assert not state.exists()


def test_a_file_without_ends_is_one_open_document(
    ids: Any, tokenizer_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As nanoGPT prepares Shakespeare."""
    np.save(tmp_path / "a.npy", ids[ids != 289])
    encode(tokenizer=tokenizer_folder, output=tmp_path / "out", manifest_for=tmp_path / "a.npy")
    assert TokenFile.open(tmp_path / "out", "train").manifest.documents == 0
    assert "no id is the end-of-text id 289" in caplog.text


def test_a_stop_and_a_change_leave_nothing(
    ids: Any, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", ids)
    monkeypatch.setattr(token_array, "_BLOCK_IDS", 100)
    tokenizer = Tokenizer.from_files(tokenizer_folder)

    def stop(done: int) -> None:
        if done == 300:
            os.kill(os.getpid(), 2)

    with pytest.raises(InterruptedRunError, match="nothing was written"):
        adopt_array(
            TokenArray.open(tmp_path / "a.npy", None), tokenizer, tmp_path / "out", EncodeSettings(), progress=stop
        )
    assert not (tmp_path / "out").exists()

    def grow(done: int) -> None:
        if done == 300:
            with (tmp_path / "a.npy").open("ab") as file:
                file.write(b"ab")

    with pytest.raises(TokenFileError, match="was changed"):
        adopt_array(
            TokenArray.open(tmp_path / "a.npy", None), tokenizer, tmp_path / "out", EncodeSettings(), progress=grow
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("megabytes", [64, pytest.param(4096, marks=pytest.mark.slow)])
def test_a_large_file_takes_little_memory(megabytes: int, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Two bytes and then a hole, which takes no room on the disk."""
    with (tmp_path / "train.bin").open("wb") as file:
        file.write(b"a\0b\0")
        file.truncate(megabytes << 20)
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    tracemalloc.start()
    try:
        manifest = adopt_array(TokenArray.open(tmp_path / "train.bin", "uint16"), tokenizer, None, EncodeSettings())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (manifest.count, manifest.bytes) == (megabytes << 19, megabytes << 19)
    assert peak < 32 << 20


def test_the_command(ids: Any, tokenizer_folder: Path, text_file: Path, tmp_path: Path) -> None:
    ids.tofile(tmp_path / "train.bin")
    encode(tokenizer=tokenizer_folder, manifest_for=tmp_path / "train.bin", dtype="uint16")
    assert json.loads((tmp_path / "train.json").read_bytes())["count"] == len(ids)
    folder = tmp_path / "out"
    for options, match in (
        ({"files": [text_file], "manifest_for": tmp_path / "train.bin"}, "give one or the other"),
        ({"files": [text_file], "output": folder, "dtype": "uint16"}, "--dtype is for an array"),
        ({"files": [text_file]}, "with --output"),
        ({"output": folder}, "no text files are given"),
    ):
        with pytest.raises(UsageError, match=match):
            encode(tokenizer=tokenizer_folder, **options)


@pytest.mark.extended
def test_the_examples_of_the_page_about_the_format(token_folder: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(token_folder, tmp_path / "tokens")
    shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    run_page(DOCS / "reference" / "files.md", tmp_path, small=True, until="--manifest-for")
    assert open_training_data(tmp_path / "elsewhere").identity()["train"]["tokens"] > 6000
    assert (tmp_path / "elsewhere" / "val-00000.bin").read_bytes() == (token_folder / "train-00000.bin").read_bytes()


def test_an_array_goes_to_an_object_store(
    ids: Any, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    np.save(tmp_path / "ids.npy", ids)
    output = Path(f"memory://bucket/{tmp_path.name}")
    adopt(tmp_path / "ids.npy", tokenizer_folder, output)
    assert (TokenFile.open(output, "train").tokens[:] == ids).all()
    assert not (tmp_path / "memory:").exists()
