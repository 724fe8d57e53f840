import json
import os
import subprocess
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TokenizerError, train_bpe
from shared.system.checksums import CHECKSUMS_FILE, ChecksumError, Checksums, write_checksums

pytestmark = pytest.mark.case("D40")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.json").write_text("{}")
    (tmp_path / "large.safetensors").write_bytes(b"0123456789" * 200_000)  # of several blocks
    (tmp_path / "inside").mkdir()
    write_checksums(tmp_path)
    return tmp_path


def test_the_sums_are_those_of_sha256sum(folder: Path) -> None:
    sums = json.loads((folder / CHECKSUMS_FILE).read_text())["sha256"]
    assert sums.keys() == {"small.json", "large.safetensors"}
    lines = "".join(f"{value}  {name}\n" for name, value in sums.items())
    subprocess.run(["sha256sum", "--check", "--quiet"], input=lines, text=True, cwd=folder, check=True)


def test_small_files_are_verified_without_reading_the_large_ones(folder: Path) -> None:
    checksums = Checksums.read(folder)
    (folder / "large.safetensors").unlink()
    (folder / "added.json").touch()
    checksums.verify_small_files()
    (folder / "small.json").write_text("[]")
    with pytest.raises(ChecksumError, match=r"small\.json is not what was written: its SHA-256 is [0-9a-f]{64}, not "):
        checksums.verify_small_files()


def test_only_small_files_have_a_limit(tmp_path: Path) -> None:
    names = ("model.safetensors", "state.pt", "vocab.json")
    for name in names:
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, (256 << 20) + 1)  # sparse: takes no space
    sums = subprocess.run(["sha256sum", "model.safetensors"], cwd=tmp_path, check=True, capture_output=True, text=True)
    checksums = Checksums(tmp_path, dict.fromkeys(names, sums.stdout.split()[0]))
    checksums.verify("model.safetensors")
    checksums.verify("state.pt")
    with pytest.raises(ChecksumError, match=r"vocab\.json, .*larger than the limit of 268,435,456 bytes"):
        checksums.verify("vocab.json")


def test_an_open_file_is_verified_as_it_is_and_stays_where_it_was(folder: Path) -> None:
    checksums = Checksums.read(folder)
    with (folder / "large.safetensors").open("rb") as file:
        file.seek(7)
        (folder / "large.safetensors").unlink()
        checksums.verify("large.safetensors", file.fileno())
        assert file.read(1) == b"7"


def test_a_file_that_is_not_listed_is_no_part_of_what_was_written(folder: Path) -> None:
    (folder / "added.json").touch()
    with pytest.raises(ChecksumError, match=r"added\.json is not listed in checksums\.json: it was added later"):
        Checksums.read(folder).verify("added.json")


def test_a_folder_without_sums_is_not_verified(tmp_path: Path) -> None:
    checksums = Checksums.read(tmp_path)
    checksums.verify("anything")
    checksums.verify_small_files()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'"text"', b"{}", b'{"sha256": 3}', b'{"sha256": {"a": 3}}', b"\xff", b"[" * 100_000]
    + [json.dumps({"sha256": {name: "0"}}).encode() for name in ("../a", "/dev/zero", "a/b")],
)
def test_what_is_no_list_of_sums_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKSUMS_FILE).write_bytes(content)
    with pytest.raises(ChecksumError, match=r"checksums\.json (is not a list of checksums|lists .* not the name)"):
        Checksums.read(tmp_path)


@pytest.mark.parametrize("given", [".", "tokenizer.json"])
def test_a_tokenizer_is_verified_when_it_is_opened(tmp_path: Path, given: str) -> None:
    """So by the tokenizer service, and by the trainer's `encode`, which need nothing else of a model folder."""
    train_bpe(["abab" * 20], 258, special_tokens=["<|endoftext|>"]).tokenizer.save(tmp_path)
    write_checksums(tmp_path)
    Tokenizer.from_files(tmp_path / given)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json, which checksums\.json lists, cannot be read"):
        Tokenizer.from_files(tmp_path / given)
