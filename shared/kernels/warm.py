"""Compile sets of kernels ahead of use: `python -m shared.kernels.warm PACKAGE ...`, in making a container image."""

import sys
import time
from collections.abc import Iterable

from shared.kernels import object_file


def main(packages: Iterable[str]) -> None:
    """Load the kernels of packages, compiled if need be, and say how long it took and where they are kept."""
    for package in packages:
        start = time.perf_counter()
        kept = object_file.of(package)
        kept.load()
        where = next((str(path) for path in kept.places() if path.exists()), "memory only")
        print(f"{package} ready after {time.perf_counter() - start:.1f} s, kept in {where}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
