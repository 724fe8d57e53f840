"""A folder in an object store."""

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.storage.folder import Folder, LocalFolder, StorageError, full_disk_errors
from trainer.storage.remote import filesystem_of, local_path, store_errors, url_of

_BLOCK_BYTES = 8 << 20
_REQUESTS = 16


def open_folder(path: Path) -> Folder:
    """Open a folder on a disk or in an object store.

    Raises:
        StorageError: The library for its object store is not installed.
    """
    url = url_of(path)
    return LocalFolder(local_path(path)) if url is None else RemoteFolder(url)


class RemoteFolder:
    """A folder in an object store. An object appears when all of it was sent.

    Not all stores have locks or conditional writes: of two runs that claim a name the later one continues, and the
    earlier one ends before it changes anything more, except for what it is just sending.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        with self._errors("", "used"):
            self._store, self._name = filesystem_of(self._url)
        self._claim: tuple[str, bytes] | None = None

    def __str__(self) -> str:
        return self._url

    def path(self, name: str) -> str:
        """As in `Folder`."""
        return f"{self._url}/{name}" if name else self._url

    def exists(self, name: str) -> bool:
        """As in `Folder`."""
        with self._errors(name, "read"):
            self._store.invalidate_cache()
            try:  # isfile() also says no where the store cannot be asked
                return bool(self._store.info(self._key(name))["type"] == "file")
            except FileNotFoundError:
                return False

    def names(self, below: str) -> list[str]:
        """As in `Folder`."""
        with self._errors(below, "read"):
            self._store.invalidate_cache()
            try:
                found = self._store.ls(self._key(below), detail=True)
            except FileNotFoundError:
                return []
            return sorted(Path(each["name"]).name for each in found if each["type"] == "file")

    def read(self, name: str) -> bytes:
        """As in `Folder`."""
        with self._errors(name, "read"):
            return self._store.cat_file(self._key(name))  # type: ignore[no-any-return]

    def blocks(self, name: str) -> Iterator[bytes]:
        """As in `Folder`."""
        with self._errors(name, "read"):
            size = int(self._store.info(self._key(name))["size"])
            for begin in range(0, size, _BLOCK_BYTES):
                yield self._store.cat_file(self._key(name), start=begin, end=min(size, begin + _BLOCK_BYTES))

    def write(self, name: str, content: bytes) -> None:
        """As in `Folder`."""
        with self._errors(name, "written"):
            self._check_claim()
            self._store.pipe_file(self._key(name), content)

    def put(self, file: Path, name: str) -> None:
        """As in `Folder`."""
        with self._errors(name, "written"):
            self._check_claim()
            self._store.put_file(str(file), self._key(name))
        file.unlink()

    def rename(self, name: str, to: str) -> None:
        """As in `Folder`: the store copies it, and deletes the old one."""
        with self._errors(to, "written"):
            self._check_claim()
            self._store.cp_file(self._key(name), self._key(to))
            self._remove(name)

    def remove(self, name: str) -> None:
        """As in `Folder`."""
        with self._errors(name, "deleted"):
            self._check_claim()
            self._remove(name)

    @contextmanager
    def scratch(self, below: str) -> Iterator[Path]:  # noqa: ARG002 - nothing of it is in the store
        """As in `Folder`: a temporary folder of this machine, which must have room for a shard."""
        try:
            with tempfile.TemporaryDirectory(prefix="ownlm-") as path:
                yield Path(path)
        finally:
            if self._claim is not None:
                with suppress(StorageError):  # another run has claimed it
                    self.remove(self._claim[0])
                self._claim = None

    def claim(self, name: str) -> None:
        """As in `Folder`: by an object NAME.owner, which is deleted with `scratch`."""
        claim = f"{name}.owner", uuid.uuid4().hex.encode()
        self.write(*claim)
        self._claim = claim

    def fetch(self, below: str, names: Sequence[str], scratch: Path) -> None:
        """As in `Folder`: several at a time."""

        def get(name: str) -> None:
            there = f"{below}/{name}" if below else name
            with self._errors(there, "read"), full_disk_errors(scratch):
                self._store.get_file(self._key(there), str(scratch / name))

        with ThreadPoolExecutor(_REQUESTS) as pool:
            list(pool.map(get, names))

    @contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:
        """As in `Folder`: copies of them."""
        with tempfile.TemporaryDirectory(prefix="ownlm-") as path:
            self.fetch("", names, Path(path))
            yield Path(path)

    def _check_claim(self) -> None:
        if self._claim is None:
            return
        name, expected = self._claim
        try:
            found = self._store.cat_file(self._key(name))
        except FileNotFoundError:
            found = b""
        if found != expected:
            raise StorageError(f"another run has begun to write to {self._url}: this one stops, and that one continues")

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._store.rm_file(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}" if name else self._name

    @contextmanager
    def _errors(self, name: str, done: str) -> Iterator[None]:
        try:
            with store_errors(self.path(name)):
                yield
        except OSError as error:
            raise StorageError(f"{self.path(name)} cannot be {done}: {error.strerror}") from None
