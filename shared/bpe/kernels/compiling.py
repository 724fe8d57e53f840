"""How every kernel is compiled: for one signature, ahead of use, and kept on disk.

The first call of a kernel compiles it or, after the first time ever, loads it. Kernels are kept in a folder named after
a hash of all kernels' sources: Numba itself does not notice that a function which another has taken in was changed, and
older versions go by the times of files, which container images round. Within it, they are keyed by processor and
Numba's version. The folder lies in `__pycache__` beside the sources
or, where that is read-only, in the user's cache folder or that for temporary files, after a copy of what came with
the sources; NUMBA_CACHE_DIR names any other place. Where nothing can be written, every process compiles anew.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba
from numba import njit, types
from numba.core import event

# What mypy sees of a kernel: Numba has no types, and the signature is what counts.
Kernel = Callable[..., Any]

# Any contiguous array of bytes, be it writable or not: memory maps and `bytes` objects are not.
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
INT64S = types.Array(types.int64, 1, "C")
UINT32S = types.Array(types.uint32, 1, "C")
UINT64S = types.Array(types.uint64, 1, "C")
INT32S = types.Array(types.int32, 1, "C")


def compiled(
    result: types.Type, *arguments: types.Type, inline: bool = False, allocates: bool = False
) -> Callable[[Kernel], Kernel]:
    """Compile a function for one signature, without the interpreter lock, or load it from the cache on disk.

    Args:
        result: What it returns.
        arguments: What it takes.
        inline: Put it into its callers whatever LLVM thinks of its size: a call hands over seven values for each array.
        allocates: It makes arrays. Others count no references, which would cost more than the work of a small function.
    """

    def decorate(function: Kernel) -> Kernel:
        folder = cache_folder()
        kept, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder or "")
        try:
            make_kernel: Callable[[Kernel], Kernel] = njit(
                nogil=True,
                cache=folder is not None,
                error_model="numpy",
                forceinline=inline,
                _nrt=allocates,
            )
            kernel: Any = make_kernel(function)
        finally:
            numba.config.CACHE_DIR = kept
        if folder is not None:
            kernel._cache._cache_file._source_stamp = folder.name  # in place of its own
        _compile_when_needed(kernel, result(*arguments))
        return cast("Kernel", kernel)

    return decorate


def compile_all() -> None:
    """Compile or load every kernel of the modules imported so far."""
    for kernel, signature in _kernels:
        kernel.get_call_template(signature.args, {})


_kernels: list[tuple[Any, Any]] = []
_compiling = threading.RLock()


def _compile_when_needed(kernel: Any, signature: Any) -> None:
    """Let the first call of a kernel, or the compilation of its first caller, compile it for its one signature.

    What is loaded from disk holds its helpers already, so that those need no loading of their own.
    """
    template_for_caller = kernel.get_call_template

    def compile_now() -> Any:
        with _compiling:
            if not kernel.overloads:
                try:
                    kernel.compile(signature)
                except OSError:  # the disk is full: what cannot be kept still runs
                    kernel._cache.disable()
                    kernel.compile(signature)
                kernel.disable_compile()
        return kernel.overloads[signature.args].entry_point

    def compile_for_args(*arguments: Any) -> Any:
        given = [kernel.typeof_pyval(argument) for argument in arguments]
        fits = len(given) == len(signature.args) and all(
            kernel.typingctx.can_convert(one, wanted) is not None
            for one, wanted in zip(given, signature.args, strict=True)
        )
        if not fits:
            raise TypeError(f"{kernel.__name__} takes {signature.args}, not {given}")
        return compile_now()

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        compile_now()
        return template_for_caller(arguments, keywords)

    kernel._compile_for_args, kernel.get_call_template = compile_for_args, get_call_template
    _kernels.append((kernel, signature))


@cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept; None if there is no place for them."""
    sources = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        digest.update(path.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    shipped = sources / "__pycache__" / name
    for parent in _cache_parents(sources):
        folder = parent / name
        if not _is_writable(parent):
            continue
        if not folder.exists() and folder != shipped and shipped.is_dir():
            _copy(shipped, folder)
        return folder
    return None


def _cache_parents(sources: Path) -> Iterator[Path]:
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"])
    yield sources / "__pycache__"
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ownlm"
    yield Path(tempfile.gettempdir()) / f"ownlm-{os.getuid()}"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # What is kept is code: where all may write, nobody else may have made the folder.
        if folder.stat().st_uid != os.getuid() and folder.parent == Path(tempfile.gettempdir()):
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _copy(shipped: Path, folder: Path) -> None:
    """Copy the files of a folder all or not at all, whoever else does the same; not that they are read-only."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for path in shipped.rglob("*"):
            if path.is_file():
                target = temporary / path.relative_to(shipped)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        temporary.rename(folder)
    except OSError:
        # Another process was first, or there is no room: Numba compiles what it does not find.
        shutil.rmtree(temporary, ignore_errors=True)


class _FirstCompilation(event.Listener):  # type: ignore[misc]  # Numba has no types
    """Says once what takes so long; nothing is said where all kernels come from the cache."""

    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        """Called when a function is about to be compiled."""
        if not self._said:
            self._said = True
            print("compiling the tokenizer for this processor, once (about half a minute)", file=sys.stderr)  # noqa: T201

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _FirstCompilation())
