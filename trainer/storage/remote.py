"""Files in object stores: s3://, gs://, hf:// and what else fsspec knows, in place of paths.

`pathlib.Path` keeps one slash of `s3://bucket/key`; here it is put back. Retries are those of the libraries.
"""

import errno
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from shared.system.errors import how_to_install
from trainer.errors import TrainerError

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,3}(.*)", re.DOTALL | re.IGNORECASE)
_PASSWORD, _HIDDEN = re.compile("^([^/@:]*):[^/@]*@"), r"\1:***@"
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
_NO_CREDENTIALS = re.compile("credential|anonymous|403|forbidden|access ?denied|invalid ?access ?key", re.IGNORECASE)


def url_of(path: Path) -> str | None:
    """The address of a file in an object store, without a password in it; None of a path on this machine."""
    found = _URL.fullmatch(str(path))
    if found is None or found[1].lower() == "file":
        return None
    return f"{found[1].lower()}://{_PASSWORD.sub(_HIDDEN, found[2])}"


def display_path(path: Path) -> str:
    """How a file is called in messages and manifests."""
    return url_of(path) or str(local_path(path))


def local_path(path: Path) -> Path:
    """What file:///NAME names; other paths as they are."""
    found = _URL.fullmatch(str(path))
    return Path("/", found[2]) if found is not None and found[1].lower() == "file" else path


def open_file(path: Path) -> BinaryIO:
    """Open a file on this machine or in an object store for reading.

    Raises:
        OSError: It cannot be opened; `strerror` says why.
    """
    if (url := url_of(path)) is None:
        return path.open("rb")
    with store_errors(url):
        filesystem, name = filesystem_of(url)
        return io.BufferedReader(filesystem.open(name, "rb"))


def read_range(path: Path, begin: int, end: int) -> bytes:
    """Some bytes of a file in an object store.

    Raises:
        OSError: It cannot be read.
    """
    url = url_of(path) or str(path)
    with store_errors(url):
        filesystem, name = filesystem_of(url)
        return filesystem.cat_file(name, start=begin, end=end)  # type: ignore[no-any-return]


def size_and_version(path: Path) -> tuple[int, str]:
    """The size of a file in an object store, and what changes when the file does.

    Raises:
        OSError: There is no such file, or it cannot be asked for.
    """
    url = url_of(path) or str(path)
    with store_errors(url):
        filesystem, name = filesystem_of(url)
        filesystem.invalidate_cache()
        info = filesystem.info(name)
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "it is a folder", url)
        known = [info.get(key) for key in ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "mtime", "created")]
        return int(info["size"]), f"{info['size']} bytes, {next((v for v in known if v is not None), '')}"


def find(path: Path) -> list[Path]:
    """The files that a name stands for: itself, those below a folder, or those that match a glob; in order.

    Raises:
        OSError: It cannot be asked for.
    """
    url = url_of(path) or str(path)
    with store_errors(url):
        filesystem, name = filesystem_of(url)
        filesystem.invalidate_cache()
        is_glob = any(character in name for character in "*?[")
        try:
            names = filesystem.find(name)  # the file itself, if it is one, also if its name looks like a glob
        except FileNotFoundError:
            if not is_glob:
                raise
            names = []
        if not names and is_glob:
            found = filesystem.glob(name, detail=True)
            names = [each for each, info in found.items() if info["type"] == "file"]
        scheme = url.partition("://")[0]
        return sorted(Path(f"{scheme}://{each.lstrip('/')}") for each in names)  # as in a folder of this machine


def files_below(filesystem: Any, folder: str) -> dict[str, int]:
    """The sizes of the files below a folder, by their names there; without those that lead out of it, as `../x` does.

    Raises:
        Exception: As the library does.
    """
    found = filesystem.find(folder, detail=True)
    names = {name[len(folder) :].strip("/"): int(info["size"]) for name, info in found.items()}
    return {name: size for name, size in names.items() if name and ".." not in name.split("/")}


def filesystem_of(url: str) -> tuple[Any, str]:
    """The file system of an address, and what it calls the file.

    Raises:
        OSError: The library for it is not installed, or there is none.
    """
    import fsspec

    if ":***@" in url.partition("://")[2].partition("/")[0]:
        reason = "the address has a password, which logs and manifests would show; set it in the environment instead"
        raise OSError(errno.EINVAL, reason, url)
    scheme = url.partition("://")[0]
    try:
        filesystem, name = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        advice = how_to_install(extra) if extra else "install what the message names"
        raise OSError(errno.ENOSYS, f"the library for {scheme}:// is not installed ({error}): {advice}", url) from None
    except ValueError:
        raise OSError(
            errno.EINVAL, f"{scheme}:// is not known; use a path, s3://, gs://, hf:// or file://", url
        ) from None
    return filesystem, name


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn what the libraries raise into an OSError that says what is wrong."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TrainerError):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.filename == url:
            raise
        if isinstance(error, FileNotFoundError):
            text = f"there is no such file or bucket ({text})"
        elif _NO_CREDENTIALS.search(f"{type(error).__name__} {text}"):
            text = f"access is denied, or no credentials were found ({text}); see docs/how-to/object-stores.md"
        raise OSError(getattr(error, "errno", None) or errno.EIO, text, url) from None
