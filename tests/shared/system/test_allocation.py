"""What a process sets of its memory, in a process of its own, since it lasts."""

import subprocess
import sys

import pytest

from shared.system.allocation import give_back_freed_memory, keep_freed_memory

FAULTS = """
import resource, sys
import numpy as np
from shared.system.allocation import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit(3)
np.ones(64 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(64 << 20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# Blocks of 8 MiB, with a small one after each that stays, from each of four threads.
HOLES = """
import sys, threading
import numpy as np, psutil
from shared.system.allocation import give_back_freed_memory
if sys.argv[1] == "given back" and not give_back_freed_memory():
    sys.exit(3)
np.ones(16 << 20, np.uint8)  # by default, blocks of this size come from a heap from now on
before = psutil.Process().memory_info().rss
kept = []
def fill():
    blocks = []
    for _ in range(4):
        blocks.append(np.ones(8 << 20, np.uint8))
        kept.append(np.ones(1000, np.uint8))
for _ in range(4):
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
print((psutil.Process().memory_info().rss - before) >> 20)
"""
COLLECTIONS = """
import gc, sys
from shared.system.allocation import freeze_objects
library = [[] for _ in range(1_000_000)]
gc.collect()
freeze_objects() if sys.argv[1] == "frozen" else gc.freeze()
before = gc.get_stats()[2]["collections"]
for _ in range(500):  # Python 3.13 has younger generations of three times the size
    garbage = [[] for _ in range(1000)]
    garbage.append(garbage)
    kept = garbage
print(gc.get_stats()[2]["collections"] - before)
"""


def run(program: str, how: str) -> int:
    done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_that_was_freed_is_used_again() -> None:
    """Page faults of four arrays of 64 MB, one after the other, as large as one before them."""
    assert run(FAULTS, "kept") < 100
    assert run(FAULTS, "given back") >= 4 * 32  # pages of 2 MB at most


@pytest.mark.case("D07")
def test_memory_between_small_blocks_is_given_back() -> None:
    assert run(HOLES, "given back") < 8
    assert run(HOLES, "by default") >= 32


@pytest.mark.case("D08")
def test_garbage_of_requests_is_collected_whatever_was_loaded_before() -> None:
    assert run(COLLECTIONS, "frozen") > 0
    assert run(COLLECTIONS, "without") == 0


def test_systems_without_glibc_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
    assert not give_back_freed_memory()
