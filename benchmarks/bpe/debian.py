"""Text out of Debian's documentation packages."""

import gzip
import html
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = (
    "debian-handbook", "perl-doc", "git-doc", "emacs-common", "vim-doc", "sqlite3-doc", "erlang-doc", "r-doc-html",
    "python3-doc", "postgresql-doc", "linux-doc", "libboost-doc", "wx3.2-doc", "qtbase5-doc-html", "octave-doc",
    "maxima-doc", "bind9-doc", "debian-reference-en", "manpages-dev", "openjdk-17-doc", "python-django-doc",
    "python-pandas-doc", "python-scipy-doc", "ghc-doc", "aptitude-doc-en", "debian-policy", "developers-reference",
    "samba-doc", "exim4-doc-html", "gnuplot-doc", "nasm", "texlive-latex-recommended-doc", "scala-doc", "ruby-doc",
)  # fmt: skip
_METAPACKAGE_BYTES = 20_000
_MARKUP = re.compile(r"<script.*?</script>|<style.*?</style>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MARKUP_SUFFIXES = {".html", ".htm"}
_TEXT_SUFFIXES = {*_MARKUP_SUFFIXES, ".txt", ".rst", ".md", ".pod", *(f".{section}" for section in range(1, 9))}


class Package(NamedTuple):
    """A package as the archive has it today."""

    name: str
    version: str


def find(name: str) -> Package | None:
    """The package that holds the text: `name`, or what it stands for where it is a metapackage; None if there is none.

    Raises:
        FileNotFoundError: If this is not a Debian system.
    """
    shown = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", name], capture_output=True, text=True, check=False
    )
    fields = dict(line.split(": ", 1) for line in shown.stdout.splitlines() if re.match(r"[A-Za-z-]+: ", line))
    if shown.returncode or "Version" not in fields:
        return None
    real = re.match(r"[a-z0-9.+-]+-doc[a-z0-9.+-]*", fields.get("Depends", ""))
    if int(fields["Size"]) < _METAPACKAGE_BYTES and real:
        return find(real.group())
    return Package(name, fields["Version"])


def documents(package: Package) -> Iterator[str]:
    """The texts of a package in the order of their paths, without markup; none if it cannot be downloaded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        download = ["apt-get", "download", f"{package.name}={package.version}"]
        if subprocess.run(download, cwd=folder, capture_output=True, check=False).returncode:
            return
        for archive in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive, folder / "content"], check=True)
        for path in sorted(folder.joinpath("content").rglob("*")):
            text = text_of(path)
            if text:
                yield text


def text_of(path: Path) -> str | None:
    """The text of a file of documentation, packed or not; None if it is something else, or not UTF-8."""
    kind = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if kind not in _TEXT_SUFFIXES or path.is_symlink() or not path.is_file():
        return None
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        return None
    return html.unescape(_MARKUP.sub("", text)) if kind in _MARKUP_SUFFIXES else text
