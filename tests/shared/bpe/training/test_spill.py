"""Word counts that went through the disk."""

import time
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.bpe.training.spill import SpilledRuns
from tests.shared.bpe.training.counted import counted

COUNTS = {b"%d" % (n * 2654435761 % 2**40) * (1 + n % 2): n % 7 + 1 for n in range(300_000)}


@pytest.mark.parametrize("number", [1, 4, 1000])
def test_runs_are_joined_exactly_and_without_crowding(tmp_path: Path, number: int) -> None:
    runs = SpilledRuns(tmp_path)
    begin = time.thread_time()
    table = counted(COUNTS)
    runs.write(table, 0)
    runs.write(table, 1)
    written = time.thread_time()
    tables = list(runs.partitions(number))
    # At most the time of writing; with words of neighboring hashes in neighboring slots of a growing table it was 15
    # times as long.
    assert time.thread_time() - written < 5 * (written - begin)
    assert len(tables) == min(number, 256)
    joined = [item for part in tables for item in part.items()]
    assert len(joined) == len(COUNTS)
    assert dict(joined) == {word: 2 * count for word, count in COUNTS.items()}


def test_a_run_that_is_cut_off_is_named(tmp_path: Path) -> None:
    runs = SpilledRuns(tmp_path)
    runs.write(counted({b"a": 1, b"longer than sixteen bytes": 2}), 0)
    (path,) = runs.paths
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(TokenizerError, match=f"{path} is truncated"):
        list(runs.partitions(1))
