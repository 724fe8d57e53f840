"""Gathers the text of the benchmark: the reference data, and documentation packages of Debian; no paragraph twice."""

import gzip
import html
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SEPARATOR = "<|endoftext|>"
PACKAGES = (
    "python3-doc", "debian-handbook", "postgresql-doc", "gcc-doc", "perl-doc", "git-doc", "emacs-common", "vim-doc",
    "php-doc", "ghc-doc", "erlang-doc", "sqlite3-doc", "r-doc-html", "linux-doc", "libstdc++-14-doc", "wx3.2-doc",
    "qtbase5-doc-html", "libboost-doc", "octave-doc", "maxima-doc", "bind9-doc", "debian-reference-en", "manpages-dev",
    "openjdk-21-doc", "openjdk-17-doc", "python-django-doc", "python-pandas-doc", "python-numpy-doc",
    "python-scipy-doc",
)  # fmt: skip
_MARKUP = re.compile(r"<script.*?</script>|<style.*?</style>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TEXT_SUFFIXES = {".html", ".htm", ".txt", ".rst", ".md", ".pod", *(f".{section}" for section in range(1, 9))}


def gather(data: Path, target: Path, num_bytes: int) -> Path:
    """Write `num_bytes` or more of text to a file, unless it is there."""
    if target.exists() and target.stat().st_size >= num_bytes:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    documents = list(_reference_documents(data))
    size = sum(map(len, documents))
    seen: set[int] = set()
    for package in PACKAGES:
        if size >= num_bytes:
            break
        with tempfile.TemporaryDirectory() as folder:
            if subprocess.run(
                ["apt-get", "download", package], cwd=folder, capture_output=True, check=False
            ).returncode:
                continue
            for archive in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            for document in _package_documents(Path(folder), seen):
                documents.append(document)
                size += len(document)
    random.Random(1).shuffle(documents)
    with target.open("w", encoding="utf-8") as file:
        file.writelines(f"{document}\n{SEPARATOR}\n" for document in documents)
    return target


def _reference_documents(data: Path) -> Iterator[str]:
    for path in [*sorted(data.glob("*.txt")), *sorted(data.glob("owt/*.txt")), *sorted(data.glob("lang/*.txt"))]:
        yield from filter(None, (text.strip("\n") for text in path.read_text("utf-8").split(SEPARATOR)))


def _package_documents(folder: Path, seen: set[int]) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        if not path.is_file() or path.is_symlink() or plain.suffix.lower() not in _TEXT_SUFFIXES:
            continue
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            text = raw.decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue
        if plain.suffix.lower() in {".html", ".htm"}:
            text = html.unescape(_MARKUP.sub("", text))
        paragraphs = re.sub(r"[ \t]+\n", "\n", text).replace(SEPARATOR, "").strip().split("\n\n")
        fresh = [p for p in paragraphs if p.strip() and (len(p) < 60 or hash(p) not in seen)]
        seen.update(hash(p) for p in fresh)
        document = "\n\n".join(fresh).encode(errors="ignore").decode()
        if len(document) > 300:
            yield document
