"""The text of the benchmark: reference data and documentation packages of Debian, and no paragraph twice."""

import hashlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bpe import debian

SEPARATOR = "<|endoftext|>"
_RAW_SEPARATOR = SEPARATOR.encode()
_BLOCK = 1 << 22
_SHORT = 60  # characters of a paragraph, such as a heading, that may come again,
_SHORT_USES = 10  # but not much more often than that: menus of web pages
_LEAST = 300  # characters of a document that is worth its separator
_CONSONANTS = "bcdfghjklmpqvwxyz"
_COPIES = 100


def gather(data: Path, target: Path, num_bytes: int) -> dict[str, Any]:
    """Write `num_bytes` or more of text to a file, unless it exists, and return what it consists of.

    Args:
        data: The folder of reference data; may be missing.
        target: The file. What it is made of is kept beside it.
        num_bytes: About how much to gather.

    Returns:
        Size, documents and SHA-256 of the file, and the versions of the packages by name.

    Raises:
        SystemExit: If there is too little to be had.
    """
    listing = target.with_suffix(".json")
    if target.exists() and listing.exists():
        kept: dict[str, Any] = json.loads(listing.read_text())
        return kept
    seen: Counter[bytes] = Counter()
    texts = list(without_repeats(_reference_documents(data), seen))
    size = sum(len(text.encode()) for text in texts)
    packages = {}
    for name in debian.PACKAGES if size < num_bytes else ():
        package = _find(name)
        if package is None:
            continue
        found = list(without_repeats(debian.documents(package), seen))
        texts += found
        size += sum(len(text.encode()) for text in found)
        if found:
            packages[package.name] = package.version
        if size >= num_bytes:
            break
    if size < num_bytes:
        raise SystemExit(
            f"only {size / 1e6:.0f} MB of text could be gathered, of the {num_bytes / 1e6:.0f} MB wanted; run `apt-get "
            "update` for the list of packages, or give a text file with --corpus"
        )
    random.Random(1).shuffle(texts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        file.writelines(f"{text}\n{SEPARATOR}\n" for text in texts)
    contents = describe(target) | {"packages": packages}
    listing.write_text(json.dumps(contents, indent=1))
    return contents


def describe(path: Path) -> dict[str, Any]:
    """Size, documents and SHA-256 of a corpus."""
    digest, num_bytes, documents = hashlib.sha256(), 0, 0
    for text in read_documents(path):
        raw = text.encode()
        documents += 1
        num_bytes += len(raw)
        digest.update(raw)
    return {"bytes": path.stat().st_size, "documents": documents, "sha256 of the documents": digest.hexdigest()}


def without_repeats(texts: Iterable[str], seen: Counter[bytes]) -> Iterator[str]:
    """The texts without paragraphs that were there before, each counted in `seen`; what is too short is left out."""
    for text in texts:
        paragraphs = re.sub(r"[ \t]+\n", "\n", text).replace(SEPARATOR, "").strip().split("\n\n")
        kept = []
        for paragraph in filter(str.strip, paragraphs):
            key = hashlib.blake2b(paragraph.strip().encode(errors="replace"), digest_size=8).digest()
            if seen[key] < (_SHORT_USES if len(paragraph) < _SHORT else 1):
                seen[key] += 1
                kept.append(paragraph)
        document = "\n\n".join(kept).encode(errors="ignore").decode()
        if len(document) >= _LEAST:
            yield document


def read_documents(path: Path, max_bytes: int | None = None) -> Iterator[str]:
    """The documents of a corpus one by one, those that begin in its first `max_bytes`."""
    position = 0
    for document in _raw_documents(path):
        if max_bytes is not None and position >= max_bytes:
            return
        position += len(document) + len(_RAW_SEPARATOR)
        yield document.decode()


def write_slice(corpus: Path, target: Path, num_bytes: int) -> Path:
    """Write a corpus of about `num_bytes`, in whole documents: the beginning of another one, or more than it.

    What is more is the same text with other words: in each further copy, two pairs of consonants have changed places.
    So common words stay as they are for the most part, and new ones keep coming as they do in real text. The file is on
    disk when this returns, so that nothing that is measured has to wait for it.

    Raises:
        SystemExit: If the corpus is too small to make so much of it.
    """
    size = 0
    with target.open("wb") as file:
        for copy in range(_COPIES):
            one, two, three, four = random.Random(copy).sample(_CONSONANTS, 4)
            here, there = (one + two + three + four).encode(), (two + one + four + three).encode()
            exchanged = bytes.maketrans(here, there) if copy else None
            for document in _raw_documents(corpus):
                if size >= num_bytes:
                    break
                size += file.write(document.translate(exchanged) + _RAW_SEPARATOR)
        file.flush()
        os.fsync(file.fileno())
    if size < num_bytes:
        raise SystemExit(f"{corpus} is too small to make {num_bytes / 1e6:.0f} MB of it: there are {size / 1e6:.1f}")
    return target


def _raw_documents(path: Path) -> Iterator[bytes]:
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            *whole, rest = (rest + block).split(_RAW_SEPARATOR)
            yield from whole
    if rest.strip():
        yield rest


def _find(name: str) -> debian.Package | None:
    try:
        return debian.find(name)
    except FileNotFoundError:
        raise SystemExit(
            "the corpus is gathered from Debian's packages, and this system has no apt-get: give a text of 200 MB with "
            f"--corpus, its documents separated by {SEPARATOR}"
        ) from None


def _reference_documents(data: Path) -> Iterator[str]:
    for path in [*sorted(data.glob("*.txt")), *sorted(data.glob("owt/*.txt")), *sorted(data.glob("lang/*.txt"))]:
        yield from (text.strip("\n") for text in path.read_text("utf-8").split(SEPARATOR))
