"""The processors of the tests' own process."""

import os
from collections.abc import Iterator

import pytest

_PROCESSORS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture
def processors() -> Iterator[set[int]]:
    """All that this process could use at first, and can use in the test.

    An engine process that a fixture of other tests keeps alive has confined this one to the others.
    """
    if len(_PROCESSORS) < 2:
        pytest.skip("needs Linux and two processors")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _PROCESSORS)
    yield _PROCESSORS
    os.sched_setaffinity(0, before)
