from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.system import control_groups, cpu_count


@pytest.fixture(autouse=True)
def _sixty_four_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "membership").write_text("0::/a/b\n4:cpu,cpuacct:/docker/elsewhere\n")
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cpu_count.os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    cpu_count._quota.cache_clear()
    yield
    cpu_count._quota.cache_clear()


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "99900000 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ({"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2),
    ],
)
def test_the_lowest_quota_of_the_groups_counts(files: dict[str, str], count: int, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_count.available_processors() == count
