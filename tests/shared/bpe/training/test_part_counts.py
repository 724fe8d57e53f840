"""Counts of parts that were made elsewhere, joined."""

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from shared.bpe.training import PartCounts, TextFile, TrainingConfig, count_part
from shared.bpe.training.counter import counter_for
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.spill import SpilledRuns

CONFIG = TrainingConfig(300, ["<|endoftext|>"])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[PartCounts]:
    """Three, as they come from another process; many pretokens are in all, some only in one, some are long."""
    folder, rng = tmp_path_factory.mktemp("parts"), random.Random(3)
    for number in range(3):
        words = [f" {int(rng.paretovariate(0.15)) % 10**9}" * rng.choice([1, 1, 3]) for _ in range(40_000)]
        words += [f" {chr(ord('a') + number) * n}" for n in range(1, 60)]
        (folder / f"{number}.txt").write_text("".join(words))
    counted = (count_part(TextFile(folder / f"{number}.txt"), CONFIG) for number in range(3))
    return [pickle.loads(pickle.dumps(each)) for each in counted]


def items(part: PartCounts) -> Iterator[tuple[bytes, int]]:
    with_one = counter_for(CONFIG, MemoryBudget(None), SpilledRuns(Path()), threads=1)
    part.add_to(with_one)
    return (item for table in with_one.partitions()() for item in table.items())


@pytest.mark.extended
@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.parametrize("spills", [False, True])
def test_they_are_joined_by_any_number_of_threads(
    parts: list[PartCounts], tmp_path: Path, threads: int, spills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: Counter[bytes] = Counter()
    for part in parts:
        expected.update(dict(items(part)))
    counter = counter_for(CONFIG, MemoryBudget(None), SpilledRuns(tmp_path), threads=threads)
    if spills:
        monkeypatch.setattr(counter, "_table_bytes", 4 << 20)
    for part in parts:
        part.add_to(counter)
    assert counter.is_in_memory != spills
    joined = [item for table in counter.partitions()() for item in table.items()]
    assert len(joined) == len(expected) > 10_000
    assert dict(joined) == expected
    assert counter.bytes_counted == sum(part.bytes_counted for part in parts)
    assert max(map(len, expected)) > 50


def test_groups_are_of_about_the_same_size(parts: list[PartCounts]) -> None:
    (_, edges), *_ = parts[0].tables
    sizes = [int(end - begin) for begin, end in pairwise(edges)]
    assert max(sizes) < 1.2 * min(sizes)


def test_what_is_free_behind_a_table_is_not_sent(parts: list[PartCounts]) -> None:
    (pretokens, edges), *_ = parts[0].tables
    assert pretokens.entries.nbytes == 24 * int(edges[-1])
    assert len(pickle.dumps(parts[0])) < pretokens.entries.nbytes + pretokens.arena.nbytes + 2000
