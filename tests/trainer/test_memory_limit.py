"""--memory-limit holds: what does not fit goes through the disk with the same result, or stops with a message."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer

pytestmark = pytest.mark.extended

MIB = 1 << 20
# The command line, and then the most memory that it has held.
CODE = """
import sys
from shared.system.memory import peak_memory
from trainer.cli import main
try:
    main()
finally:
    print("peak", peak_memory(), file=sys.stderr)
"""


def run(*arguments: object) -> tuple[int, str, int]:
    """The status of a command, what it says, and the most memory that it has held."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr, int(done.stderr.rpartition("peak ")[2])


class Done:
    """A run of `vocab`."""

    def __init__(self, path: Path, output: Path, *options: object, vocab_size: int = 2000):
        fixed = ("--output", output, "--held-out", 0, "--vocab-size", vocab_size)
        self.status, self.errors, self.peak = run("vocab", path, *fixed, *options)
        self.report = None
        if self.status == 0:
            self.report = json.loads((output / "vocab_report.json").read_text())
            assert 0.9 * self.peak < self.report["peak_memory"] <= self.peak


def least_limit(tmp_path: Path) -> int:
    """What the program itself takes, and what training takes at least."""
    (tmp_path / "small.txt").write_text("some words")
    refused = Done(tmp_path / "small.txt", tmp_path / "least", "--memory-limit", 1)
    assert refused.status == 1
    assert "the memory limit of 1 bytes is too low: the process itself uses" in refused.errors
    return refused.peak + 100 * MIB


def write_words(path: Path, megabytes: int, kinds: int) -> None:
    """Words of nine letters: capital ones of a small vocabulary, and small ones of which none comes twice."""
    draw = np.random.default_rng(0)
    few = draw.integers(65, 91, size=(kinds, 10), dtype=np.uint8)
    few[:, 0] = ord(" ")
    powers = 26 ** np.arange(9)
    with path.open("wb") as file:
        for part in range(megabytes):
            file.write(few[(kinds * draw.random(20_000) ** 3).astype(int)].tobytes())
            distinct = np.full((80_000, 10), ord(" "), dtype=np.uint8)
            numbers = 80_000 * part + np.arange(80_000)
            distinct[:, 1:] = numbers[:, None] * 7919 // powers % 26 + 97
            file.write(distinct.tobytes())


@pytest.mark.parametrize("megabytes", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_distinct_words_beyond_the_limit(tmp_path: Path, megabytes: int) -> None:
    path = tmp_path / "words.txt"
    write_words(path, megabytes, 5000)
    limit = least_limit(tmp_path)
    if megabytes >= 1000:
        limit = 400 * MIB
        assert path.stat().st_size > 2 * limit
    stopped = Done(path, tmp_path / "out", "--memory-limit", limit)
    assert stopped.status == 1
    assert "distinct pretokens of" in stopped.errors
    assert "--min-count 2 or more" in stopped.errors
    assert stopped.peak < limit
    assert not (tmp_path / "out").exists()
    done = Done(path, tmp_path / "out", "--memory-limit", limit, "--min-count", 2)
    assert done.status == 0, done.errors
    assert done.report["spilled_bytes"] > megabytes * 1_000_000
    assert (done.report["min_count"], done.report["distinct_words"]) == (2, 5000)
    assert done.report["words_left_out"] == 80_000 * megabytes
    assert done.peak < limit
    whole = Done(path, tmp_path / "whole", "--min-count", 2)
    assert whole.report["spilled_bytes"] < done.report["spilled_bytes"]
    assert whole.report["fingerprint"] == done.report["fingerprint"]


@pytest.mark.parametrize("megabytes", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("character", [pytest.param("letters", marks=pytest.mark.slow), "字"])
def test_one_line_without_a_place_to_cut(tmp_path: Path, megabytes: int, character: str) -> None:
    path = tmp_path / "line.txt"
    draw = np.random.default_rng(0)
    if character == "letters":
        path.write_bytes(draw.integers(97, 123, size=megabytes * 1_000_000, dtype=np.uint8).tobytes())
    else:
        codes = draw.integers(0x4E00, 0x5600, size=megabytes * 333_333).astype("<u2")
        path.write_bytes(codes.tobytes().decode("utf-16-le").encode())
    limit = least_limit(tmp_path) + 5 * megabytes * MIB
    stopped = Done(path, tmp_path / "out", "--memory-limit", limit)
    assert stopped.status == 1
    assert "Raise --memory-limit" in stopped.errors
    assert stopped.peak < limit
    limit = least_limit(tmp_path) + 14 * megabytes * MIB
    done = Done(path, tmp_path / "out", "--memory-limit", limit, vocab_size=300)
    assert done.status == 0, done.errors
    assert done.report["distinct_words"] == 1
    assert done.peak < limit


def write_repeated(path: Path, megabytes: int) -> None:
    """Files of some hundred kilobytes: NUL, one line of JSON, and values of 8 MB that are one value."""
    if path.suffix == ".parquet":
        value = pyarrow.array(["x" * (8 * MIB)])
        column = pyarrow.DictionaryArray.from_arrays(np.zeros(megabytes // 4, np.int32), value)
        parquet.write_table(pyarrow.table({"text": column}), path)
    else:
        with zstandard.open(path, "wb") as file:
            file.write(b'{"text": "' if ".jsonl" in path.name else b"")
            for _ in range(megabytes):
                file.write(bytes([ord("x") if ".jsonl" in path.name else 0]) * MIB)
    assert path.stat().st_size < 500_000


@pytest.mark.case("D31")
@pytest.mark.parametrize("megabytes", [300, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst", "a.parquet"])
@pytest.mark.parametrize("command", ["vocab", "encode", pytest.param("evaluate-tokenizers", marks=pytest.mark.slow)])
def test_files_that_unpack_to_a_thousand_times_their_size(
    tmp_path: Path, tokenizer_folder: Path, command: str, name: str, megabytes: int
) -> None:
    """Refused in words, within the limit; values that are there one after the other are learned from."""
    write_repeated(tmp_path / name, megabytes)
    options: list[object] = ["--threads", 1, "--memory-limit", "500M"]
    if command == "vocab":
        options += ["--vocab-size", 300, "--output", tmp_path / "out", "--held-out", 0]
    else:
        options += ["--tokenizer", tokenizer_folder]
    if command == "encode":
        options += ["--output", tmp_path / "out"]
    if command == "evaluate-tokenizers":
        options += ["--max-size", "64G"]
    status, errors, peak = run(command, tmp_path / name, *options)
    assert peak < 500 * MIB
    if (command, name) == ("vocab", "a.parquet"):
        assert status == 0, errors
    else:
        assert status == 1
        assert name in errors
        assert "--memory-limit" in errors
        assert not (tmp_path / "out").exists()


@pytest.mark.case("D31")
def test_encoding_says_what_its_limit_must_be(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    command = ("encode", tmp_path / "a.txt", "--tokenizer", tokenizer_folder, "--output", tmp_path / "out")
    status, errors, _ = run(*command, "--memory-limit", "100M", "--threads", 2)
    assert status == 1
    assert "the memory limit of 104,857,600 bytes is too low: the program itself takes" in errors
    assert "raise it (--memory-limit), or use fewer --threads" in errors


@pytest.mark.case("D31")
@pytest.mark.parametrize(
    ("name", "custom"),
    [
        ("a.txt", False),
        ("a.jsonl", True),
        pytest.param("a.txt", True, marks=pytest.mark.slow),
        pytest.param("a.jsonl", False, marks=pytest.mark.slow),
    ],
)
def test_the_longest_part_is_encoded_within_the_limit(
    tmp_path: Path, text_file: Path, tokenizer_folder: Path, name: str, custom: bool
) -> None:
    """A part as long as it may be, and a longer one: as a single piece, and as strings of Python's."""
    if custom:
        train_tokenizer([text_file], tmp_path / "tokenizer", VocabSettings(vocab_size=280, pattern="[a-z]|[^a-z]+"))
        tokenizer_folder = tmp_path / "tokenizer"
    options = ("--tokenizer", tokenizer_folder, "--output", tmp_path / "out", "--threads", 1, "--memory-limit", "600M")
    draw = np.random.default_rng(0)
    for megabytes, expected in ((4, 0), (9, 1)):
        text = draw.integers(97, 123, size=megabytes * MIB, dtype=np.uint8).tobytes().decode()
        (tmp_path / name).write_text(text if name == "a.txt" else json.dumps({"text": text, "x": [[]] * 10}))
        status, errors, peak = run("encode", tmp_path / name, *options)
        assert (status, peak < 600 * MIB) == (expected, True), errors


@pytest.mark.slow
def test_two_hundred_megabytes_with_a_limit_that_spills(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    draw = np.random.default_rng(1)
    lengths = draw.integers(2, 12, size=1_000_000)
    words = [
        bytes(row[:length])
        for row, length in zip(draw.integers(97, 123, size=(len(lengths), 12), dtype=np.uint8), lengths, strict=True)
    ]
    with path.open("wb") as file:
        while file.tell() < 200_000_000:
            numbers = (len(words) * draw.random(1_000_000) ** 4).astype(int)
            file.write(b" ".join(words[number] for number in numbers) + b"<|endoftext|>")
    limit = 350 * MIB
    done = Done(path, tmp_path / "out", "--memory-limit", limit, vocab_size=10_000)
    assert done.status == 0, done.errors
    assert done.report["spilled_bytes"] > 0
    assert done.peak < limit
    whole = Done(path, tmp_path / "whole", vocab_size=10_000)
    assert whole.report["spilled_bytes"] == 0
    assert whole.report["fingerprint"] == done.report["fingerprint"]
