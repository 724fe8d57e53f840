"""Compile all kernels ahead of use: `python -m shared.bpe.warm`, once in the making of a container image."""

import importlib
import pkgutil
import time

from shared.bpe import kernels


def main() -> None:
    """Load every module of kernels, and say how long it took and where they are kept."""
    start = time.perf_counter()
    for module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{module.name}")
    from shared.bpe.kernels.compiling import cache_folder, compile_all

    compile_all()

    print(f"kernels ready after {time.perf_counter() - start:.1f} s, kept in {cache_folder()}")  # noqa: T201


if __name__ == "__main__":
    main()
