"""The allocator's setting, in a process of its own, since it lasts."""

import subprocess
import sys

import pytest

from shared.allocation import keep_freed_memory

FAULTS = """
import resource, sys
import numpy as np
from shared.allocation import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit(3)
np.ones(64 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(64 << 20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    """Page faults of four arrays of 64 MB, one after the other, as large as one before them."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_that_was_freed_is_used_again() -> None:
    assert page_faults("kept") < 100
    assert page_faults("given back") >= 4 * 32  # pages of 2 MB at most


def test_systems_without_glibc_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
