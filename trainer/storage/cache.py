"""Local copies of what is read again and again from an object store."""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.system.files import replaced_file, write_text
from shared.system.locks import lock
from trainer.storage.folder import StorageError
from trainer.storage.remote import files_below, filesystem_of, local_path, store_errors, url_of

_CHECKED = ".checked.json"
_REQUESTS = 4  # at a time; each file is hashed as well
_LARGEST_SMALL = 256 << 20


def cache_folder() -> Path:
    """Where copies are kept: OWNLM_CACHE_DIR, else ownlm in the user's folder for caches."""
    if given := os.environ.get("OWNLM_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ownlm"


def local_copy(path: Path) -> Path:
    """A folder on this machine with the small files of a folder in an object store, such as a tokenizer and manifests.

    They are copied again at each call, and those that are no longer there are deleted. Of a single file, that file.

    Raises:
        StorageError: It cannot be read.
    """
    url = url_of(path)
    if url is None:
        return local_path(path)
    with _errors(url):
        store, name = filesystem_of(url)
        store.invalidate_cache()
        is_file = store.isfile(name)
        files = {} if is_file else files_below(store, name)
        if not (is_file or files):
            raise FileNotFoundError(f"{name} has no files")
    if is_file:
        with _cache_of(url.rpartition("/")[0]) as folder:
            _copy(store, name, folder / path.name, url)
            return folder / path.name
    with _cache_of(url) as folder:
        for file, size in files.items():
            if _is_small(file) and size <= _LARGEST_SMALL:
                _copy(store, f"{name}/{file}", folder / file, url)
        for copy in [each for each in folder.rglob("*") if _is_small(each.name)]:
            if copy.relative_to(folder).as_posix() not in files:
                copy.unlink(missing_ok=True)
        return folder


def copy_verified(path: Path, hashes: Mapping[str, str], hash_of: Callable[[Path], str]) -> Path:
    """The local copy of a folder in an object store, with these files in it, each copied once and compared.

    Of several processes one copies, and the others wait.

    Args:
        path: The folder in the object store.
        hashes: What the files must have, by their names.
        hash_of: Computes that.

    Raises:
        StorageError: A file cannot be read, is not what was written, or there is no room for all.
    """
    url = url_of(path)
    assert url is not None
    with _errors(url):
        store, name = filesystem_of(url)
    with _cache_of(url) as folder, _locked(folder):
        checked = _read_checked(folder)
        missing = [file for file in hashes if checked.get(file) != [hashes[file], *_stamp(folder / file)]]
        with _errors(url):
            needed = sum(int(store.info(f"{name}/{file}")["size"]) for file in missing)
        _check_room(folder, url, needed)
        changing = threading.Lock()

        def add(file: str) -> None:
            if not (folder / file).exists() or hash_of(folder / file) != hashes[file]:
                _copy(store, f"{name}/{file}", folder / file, url, lambda copy: hash_of(copy) == hashes[file])
            with changing:
                checked[file] = [hashes[file], *_stamp(folder / file)]
                write_text(folder / _CHECKED, json.dumps(checked))

        with ThreadPoolExecutor(_REQUESTS) as pool:
            for _ in pool.map(add, missing):
                pass
    return folder


def _copy(store: Any, name: str, file: Path, url: str, is_right: Callable[[Path], bool] = lambda _: True) -> None:
    """Copy an object, which appears as a whole, to a file of the cache."""
    with replaced_file(file) as temporary:
        with _errors(url):
            store.get_file(name, str(temporary))
        if not is_right(temporary):
            raise StorageError(f"{url}/{file.name} is not what was written: its manifest has another hash")


def _is_small(name: str) -> bool:
    return name.endswith((".json", ".jinja", ".txt", ".model")) and not name.startswith(".")


@contextmanager
def _cache_of(url: str) -> Iterator[Path]:
    """The folder for copies of a folder in an object store; a StorageError says if it cannot be used."""
    folder = cache_folder() / "objects" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise StorageError(
            f"{url} cannot be copied to {folder}: {error.strerror}; name another place with OWNLM_CACHE_DIR"
        ) from None


def _read_checked(folder: Path) -> dict[str, list[object]]:
    try:
        content = json.loads((folder / _CHECKED).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _stamp(file: Path) -> list[int]:
    """What changes with a file's content."""
    try:
        status = file.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def _check_room(folder: Path, url: str, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StorageError(
            f"{url} is copied to {folder}, which needs {size / 1e9:.1f} GB and has {free / 1e9:.1f} GB free; delete "
            f"copies of other folders in {folder.parent}, or name another place with OWNLM_CACHE_DIR"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        lock(file.fileno(), holder="file", wait=True)
        yield


@contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        with store_errors(url):
            yield
    except OSError as error:
        if error.errno == errno.ENOSPC:  # of this machine, in libraries' words
            raise OSError(error.errno, os.strerror(error.errno)) from None
        raise StorageError(f"{url} cannot be read: {error.strerror}") from None
