"""Compile sets of kernels ahead of use: `python -m shared.kernels.warm [--levels] PACKAGE ...`, in making an image.

With `--levels`, for all levels of processors, so that the image needs no compiler on any; else for this machine's.
"""

import platform
import sys
import time
from collections.abc import Iterable
from functools import partial

from shared.kernels import object_file, processor
from shared.system.cpu_count import available_processors
from shared.system.thread_pool import in_order


def main(packages: Iterable[str]) -> None:
    """Load the kernels of packages, compiled if need be, and say how long it took and where they are kept."""
    for package in packages:
        start = time.perf_counter()
        kept = object_file.of(package)
        kept.load()
        where = next((str(path) for path in kept.places() if path.exists()), "memory only")
        print(f"{package} ready after {time.perf_counter() - start:.1f} s, kept in {where}")  # noqa: T201


def for_all_levels(packages: Iterable[str]) -> None:
    """Compile the kernels of packages for all levels, several at a time; the files lie beside their sources.

    Other processors than x86-64 have no levels: there it is this machine's.
    """
    if platform.machine() != "x86_64":
        main(packages)
        return
    jobs = [partial(object_file.of(package).compile_for, level) for package in packages for level in processor.LEVELS]
    for path in in_order(jobs, available_processors()):
        print(path, flush=True)  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:2] == ["--levels"]:
        for_all_levels(sys.argv[2:])
    else:
        main(sys.argv[1:])
