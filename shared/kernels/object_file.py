"""The machine code of a set of kernels: one object file, compiled once for each processor and kept.

Its name is a hash of all that determines its content: the kernels' sources, the processor, and the version of LLVM. It
lies in `__pycache__` beside the sources or, where that is read-only, in the user's cache folder or that for temporary
files; OWNLM_CACHE_DIR names any other place. Where nothing can be written, every process compiles anew.

Images have no compiler. Beside their sources lie files for several levels of processors (`warm --levels`); where there
is none for exactly this processor, the best of them that runs on it is taken.

Code from a file runs with this user's rights: it is used only if no one except this user and root can have written it.
Beside the sources there is nothing to check: a user who can write there can change the sources.
"""

import hashlib
import importlib
import importlib.metadata
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from shared.kernels import elf_code, processor
from shared.kernels.compiler_process import compiled_in_child
from shared.system.cpu_count import available_processors
from shared.system.memory import total_memory
from shared.system.thread_pool import in_order

_COMPILER = Path(__file__).parent
_MEMORY_OF_A_COMPILER = 512 << 20  # of which it uses half
_DIGEST_BYTES = hashlib.sha256().digest_size
_NO_COMPILER = (
    "{title}: there is no compiled code that runs on this processor, and no compiler: images have code for x86-64 with "
    "AVX2 (Haswell, Zen, or later); elsewhere install numba and llvmlite"
)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(Exception):
    """Another user may have put something in a place for compiled code; the message says how."""


@cache
def of(package: str) -> "ObjectFile":
    """The one of the kernels in the modules of a package."""
    return ObjectFile(package)


def load_all(packages: Iterable[str]) -> None:
    """Load the object files of several packages; those that must be compiled are compiled at the same time."""
    threads = max(1, min(available_processors(), total_memory() // _MEMORY_OF_A_COMPILER))
    for _ in in_order([of(package).load for package in packages], threads):
        pass


class ObjectFile:
    """The compiled kernels of one package.

    Args:
        package: Its full name; its `TITLE` is shown while it is compiled.
    """

    def __init__(self, package: str):
        self.package = package
        self._lock = threading.Lock()
        self._find_symbol: Callable[[str], int] | None = None

    def address_of(self, symbol: str) -> int:
        """Where a kernel lies in memory."""
        address = self.load()(symbol)
        if not address:
            raise RuntimeError(f"the object file of {self.package} lacks {symbol}")
        return address

    def load(self) -> Callable[[str], int]:
        """What finds a kernel in memory, 0 if there is none; the first call loads the object file, or compiles it."""
        with self._lock:
            if self._find_symbol is None:
                self._find_symbol = _loaded(self._find() or self._compile())
        return self._find_symbol

    def compile_for(self, level: processor.Level) -> Path:
        """Compile for a level of processors, and put the result beside the sources."""
        path = self._portable(level)
        path.parent.mkdir(mode=0o755, exist_ok=True)
        code = compiled_in_child(self.package, self._title(), level)
        _write(path, hashlib.sha256(code).digest() + code)
        return path

    def places(self) -> Iterator[Path]:
        """Where the object file of this processor may lie, the best place first."""
        name = self._name()
        if os.environ.get("OWNLM_CACHE_DIR"):
            yield Path(os.environ["OWNLM_CACHE_DIR"]) / name
        yield self._sources() / "__pycache__" / name
        with suppress(RuntimeError):  # a user without a home
            yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ownlm" / name
        if (temporary := _temporary_folder()) is not None:
            yield temporary / f"ownlm-{os.getuid()}" / name

    def _portable_places(self) -> Iterator[Path]:
        """Where code for this processor's levels may lie, the best level first."""
        yield from map(self._portable, processor.fitting(processor.flags()))

    def _portable(self, level: processor.Level) -> Path:
        """Where code for a level of processors lies; any version of LLVM may have made it."""
        return self._sources() / "__pycache__" / f"kernels-{self._digest_of_sources().hexdigest()[:16]}-{level.name}.o"

    def _sources(self) -> Path:
        return Path(importlib.import_module(self.package).__path__[0])

    def _title(self) -> str:
        title: str = importlib.import_module(self.package).TITLE
        return title

    def _digest_of_sources(self) -> "hashlib._Hash":
        digest = hashlib.sha256()
        for path in [*sorted(self._sources().glob("*.py")), *sorted(_COMPILER.glob("*.py"))]:
            digest.update(path.read_bytes())
        return digest

    def _name(self) -> str:
        digest = self._digest_of_sources()
        for decisive in (processor.description() or _description_by_llvm(), _version_of_llvm() or ""):
            digest.update(decisive.encode())
        return f"kernels-{digest.hexdigest()[:16]}.o"

    def _find(self) -> bytes | None:
        """The object file from the first place that has it whole; a warning for each that cannot be trusted."""
        for path in chain(self.places(), self._portable_places()):
            try:
                self._check_folder(path.parent)
                content = self._read(path)
            except UntrustedError as error:
                print(f"warning: {error}", file=sys.stderr)  # noqa: T201
            except OSError:
                continue
            else:
                if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
                    return content[_DIGEST_BYTES:]
        return None

    def _check_folder(self, folder: Path) -> None:
        if folder.parent != self._sources():
            _check(folder, folder.lstat(), "folder", stat.S_ISDIR)

    def _read(self, path: Path) -> bytes:
        # Without blocking, as opening a named pipe would.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if path.parent.parent != self._sources():
                _check(path, os.fstat(file.fileno()), "file", stat.S_ISREG)
            return file.read()

    def _compile(self) -> bytes:
        """Compile all kernels, and keep them where that is possible."""
        title = self._title()
        if _version_of_llvm() is None:
            raise RuntimeError(_NO_COMPILER.format(title=title))
        print(f"compiling {title} for this processor, once (up to a minute)", file=sys.stderr)  # noqa: T201
        places = list(self.places())  # named by what is compiled now: sources may change in the meantime
        code = compiled_in_child(self.package, title)
        for path in places:
            with suppress(OSError, UntrustedError):
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._check_folder(path.parent)
                _write(path, hashlib.sha256(code).digest() + code)
                break
        return code


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, also where other processes write it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check(path: Path, status: os.stat_result, kind: str, is_kind: Callable[[int], bool]) -> None:
    """Raise if a user other than this one and root owns or may change a folder or a file."""
    if not is_kind(status.st_mode):
        fault = "is a symbolic link" if stat.S_ISLNK(status.st_mode) else f"is not a {kind}"
    elif status.st_uid not in {0, os.getuid()}:
        fault = f"belongs to user {status.st_uid}, not to user {os.getuid()}"
    elif status.st_mode & _OTHERS_MAY_WRITE:
        fault = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise UntrustedError(
        f"{path} {fault}, so it is not used for compiled code: remove it, or let OWNLM_CACHE_DIR name a folder that "
        "only you can write"
    )


def _temporary_folder() -> Path | None:
    """The folder for temporary files; None where nothing can be written, as in a container that is read-only."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return None


@cache
def _version_of_llvm() -> str | None:
    """That of the package that the compiler comes with; None where it is not installed."""
    try:
        return importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return None


def _description_by_llvm() -> str:
    """As Linux does not say what the processor is; empty without LLVM, where no file is for exactly this processor."""
    if _version_of_llvm() is None:
        return ""
    llvm = _llvm()
    return f"{llvm.get_host_cpu_name()},{llvm.get_host_cpu_features().flatten()}"


def _llvm() -> Any:
    try:
        import llvmlite.binding
    except OSError as error:
        reason = str(error.__context__)  # what the system says; llvmlite only says that it cannot find the file
        if "failed to map segment" in reason and "not permitted" not in reason:
            raise MemoryError(f"not enough memory to load LLVM, which runs compiled code ({reason})") from error
        raise
    return llvmlite.binding


def _loaded(code: bytes) -> Callable[[str], int]:
    """What finds an address in an object file that has been loaded, which it stays."""
    if elf_code.is_supported():
        addresses = elf_code.load(code)
        return lambda symbol: addresses.get(symbol, 0)
    llvm = _llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    find: Callable[[str], int] = engine.get_function_address
    return find
