"""Damaged files of other formats end in errors that name the file, in bounded memory, and nothing is written."""

import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.bpe import train_bpe
from tests.trainer.importing import writers as w
from trainer.commands.import_model import ImportSettings, import_model
from trainer.errors import TrainerError

GIGABYTE = 1 << 30
Refuse = Callable[..., None]


@pytest.fixture
def refuse(tmp_path: Path) -> Refuse:
    train_bpe(["a fox"], 270, special_tokens=["<|endoftext|>"]).tokenizer.save(tmp_path / "tokenizer")

    def refuse(source: Path, reason: str, context_length: int | None = None) -> None:
        settings = ImportSettings(tokenizer=tmp_path / "tokenizer", context_length=context_length)
        with pytest.raises(TrainerError, match=reason):
            import_model(source, tmp_path / "out", settings=settings)
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]

    return refuse


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A gigabyte more than is in use: an allocation by a claimed size fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + GIGABYTE, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_llama2c_cut_off_anywhere(refuse: Refuse, tmp_path: Path, version: int) -> None:
    file = tmp_path / "model.bin"
    w.write_llama2c(file, w.llama_weights(), version)
    whole = file.read_bytes()
    for length in (0, 3, 27, 28, 100, 255, 256, 257, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refuse(file, r"model\.bin: (not a llama2\.c model: \d+ bytes|was cut off|its header says .* it is cut off)")
    file.write_bytes(whole + b"\0")
    refuse(file, "longer than that")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_llama2c_with_flipped_bits_in_its_header(
    refuse: Refuse, little_memory: None, tmp_path: Path, version: int
) -> None:
    file = tmp_path / "model.bin"
    w.write_llama2c(file, w.llama_weights(), version)
    whole = bytearray(file.read_bytes())
    # From version 1 on, any context length fits the file.
    positions = [*range(28)] if version == 0 else [*range(32), *range(36, 41 if version == 2 else 37)]
    for position in positions:
        for bit in range(8):
            # Heads: fewer or more may still fit the file's size; then the widths differ, or the logits of both do not.
            if (position - (0 if version == 0 else 8)) // 4 in (3, 4) and bit < 3:
                continue
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            file.write_bytes(damaged)
            refuse(file, r"model\.bin")


def test_llama2c_with_other_rotations(refuse: Refuse, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    w.write_llama2c(file, w.llama_weights(tied=True), 0)
    content = bytearray(file.read_bytes())
    content[-4:] = struct.pack("<f", 0.5)
    file.write_bytes(content)
    refuse(file, "sines of RoPE are not those of base 10000")
    content[-4:] = struct.pack("<f", float("nan"))
    file.write_bytes(content)
    refuse(file, "sines of RoPE")


@pytest.mark.parametrize("seed", range(4))
def test_torch_files_with_damage(refuse: Refuse, little_memory: None, tmp_path: Path, seed: int) -> None:
    """Flipped bytes in the archive's directory, its pickle and its numbers, and cuts."""
    folder = tmp_path / "llama"
    w.write_meta(folder, w.llama_weights())
    file = folder / "consolidated.00.pth"
    whole, draw = file.read_bytes(), random.Random(seed)
    pickled = whole.index(b"data.pkl")
    for _ in range(12):
        damaged = bytearray(whole[: draw.choice([len(whole), len(whole), draw.randrange(len(whole))])])
        for _ in range(200):
            place = draw.choice([draw.randrange(len(damaged)), draw.randrange(len(damaged) - 100, len(damaged))])
            damaged[place] = draw.randrange(256)
        at = pickled + draw.randrange(2_000)
        damaged[at : at + 8] = draw.randbytes(len(damaged[at : at + 8]))
        file.write_bytes(damaged)
        refuse(folder, "llama|logits|the file", context_length=w.CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "a: [",
        "{1: 2}",
        "\x00",
        "n_head: !!python/object/apply:os.system [ls]",
        "x: &a [*a, *a]\n",
        "- " * 9_000,
    ],
)
def test_settings_of_litgpt_that_are_none(refuse: Refuse, tmp_path: Path, text: str) -> None:
    (tmp_path / "lit").mkdir()
    (tmp_path / "lit" / "lit_model.pth").write_bytes(b"")
    (tmp_path / "lit" / "model_config.yaml").write_text(text)
    refuse(tmp_path / "lit", "model_config.yaml")
