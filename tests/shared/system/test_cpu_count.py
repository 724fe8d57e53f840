from pathlib import Path

import pytest

from shared.system import cpu_count as processors


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
    ],
)
def test_a_containers_share_of_time_counts(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(processors, "_CGROUPS", tmp_path)
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    assert processors.available_processors() == count
