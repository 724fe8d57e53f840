"""Word counts that went through the disk."""

import time
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.bpe.training.spill import WordRuns
from shared.bpe.training.word_counts import WordCounts

COUNTS = {b"%d" % (n * 2654435761 % 2**40) * (1 + n % 2): n % 7 + 1 for n in range(300_000)}


@pytest.mark.parametrize("number", [1, 4, 1000])
def test_runs_are_joined_exactly_and_without_crowding(tmp_path: Path, number: int) -> None:
    runs = WordRuns(tmp_path)
    table = WordCounts.from_mapping(COUNTS)
    runs.write(table, 0)
    runs.write(table, 1)
    start = time.process_time()
    tables = list(runs.partitions(number))
    # 0.1 s; with words of neighbouring hashes in neighbouring slots of a growing table it was 6 s.
    assert time.process_time() - start < 2
    assert len(tables) == min(number, 256)
    joined = [item for part in tables for item in part.items()]
    assert len(joined) == len(COUNTS)
    assert dict(joined) == {word: 2 * count for word, count in COUNTS.items()}


def test_a_run_that_is_cut_off_is_named(tmp_path: Path) -> None:
    runs = WordRuns(tmp_path)
    runs.write(WordCounts.from_mapping({b"a": 1, b"longer than sixteen bytes": 2}), 0)
    (path,) = runs.paths
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(TokenizerError, match=f"{path} is cut off"):
        list(runs.partitions(1))
    path.write_bytes(whole[:100])
    with pytest.raises(TokenizerError, match=f"{path} holds no word counts of this version"):
        list(runs.partitions(1))
