"""Compile all kernels ahead of use: `python -m shared.bpe.warm`, once in the making of a container image."""

import time

from shared.bpe.kernels import object_file


def main() -> None:
    """Load the kernels, compiled if need be, and say how long it took and where they are kept."""
    start = time.perf_counter()
    object_file.load()
    where = next((str(path) for path in object_file.places() if path.exists()), "memory only")
    print(f"kernels ready after {time.perf_counter() - start:.1f} s, kept in {where}")  # noqa: T201


if __name__ == "__main__":
    main()
