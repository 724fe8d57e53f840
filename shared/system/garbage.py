"""Python's search for garbage, put off where it would find none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Make many objects that stay, or that are dropped together, without looking for garbage among all that exist.

    Python looks after each 700 objects, and now and then goes through all: for a vocabulary, a fifth of the time. Other
    threads look for none meanwhile either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
