"""Reading a tokenizer from a folder or a file, whichever its format is."""

from pathlib import Path

from shared.bpe.errors import TokenizerError
from shared.bpe.formats import gpt2 as gpt2_files
from shared.bpe.formats import llama2c, sentencepiece, tokenizer_json
from shared.bpe.formats.foreign_files import known_kind
from shared.bpe.vocabulary import Vocabulary
from shared.system.checksums import ChecksumError, Checksums
from shared.system.regular_file import open_regular

# Suffixes of files that are often mistaken for a tokenizer.
_OTHER_SUFFIXES = {".bin", ".bpe", ".gguf", ".model", ".pickle", ".pkl", ".tiktoken"}


def read_vocabulary(path: Path, merges_path: Path | None = None) -> Vocabulary:
    """Read a folder or a file: see `Tokenizer.from_files`.

    The folder's checksums are not verified: see `read_verified`.

    Raises:
        TokenizerError: A file is missing, damaged, or describes a tokenizer that would not be matched exactly.
    """
    if path.is_dir():
        path = _main_file(path)
    if merges_path is None and path.name == "vocab.json":
        merges_path = path.with_name("merges.txt")
    if merges_path is not None:
        return gpt2_files.read(path, merges_path)
    if sentencepiece.is_model(path):
        return sentencepiece.read(path)
    return llama2c.read(path) if llama2c.is_llama2c(path) else tokenizer_json.read(path)


def read_verified(path: Path, merges_path: Path | None = None) -> Vocabulary:
    """As `read_vocabulary`, after the files were compared with the folder's checksums.json.

    Raises:
        TokenizerError: As in `read_vocabulary`, or a file differs from its checksum.
    """
    try:
        Checksums.read(path if path.is_dir() else path.parent).verify_small_files()
    except ChecksumError as error:
        raise TokenizerError(str(error)) from error
    return read_vocabulary(path, merges_path)


def _main_file(folder: Path) -> Path:
    """The tokenizer.json of a folder, or else its vocab.json, SentencePiece's model or llama2.c's file."""
    for name in ("tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            return folder / name
    model, bin_file = folder / "tokenizer.model", folder / "tokenizer.bin"
    if sentencepiece.is_model(model):
        return model
    if llama2c.is_llama2c(bin_file):
        return bin_file
    others = (path for path in sorted(folder.iterdir()) if path.suffix in _OTHER_SUFFIXES and path.is_file())
    kinds = (f"; {path.name} {kind}" for path in others if (kind := known_kind(_start_of(path), expects_json=True)))
    raise TokenizerError(f"{folder} has neither a tokenizer.json nor a vocab.json{next(kinds, '')}")


def _start_of(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(1 << 10)
