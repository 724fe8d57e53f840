import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from shared.system import control_groups, memory

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _a_large_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(memory.os, "sysconf", lambda _name: 1 << 18)  # both the page size and the number of pages
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=32 * GIB))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def test_the_limit_of_each_group_around_counts_and_page_cache_is_free(tmp_path: Path) -> None:
    stat = "anon 1\ninactive_file 50\n"
    write(tmp_path / "a", memory__max="1000", memory__current="400", memory__stat=stat)
    write(tmp_path / "a" / "b", memory__max="max", memory__current="300", memory__stat=stat)
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert memory.total_memory() == 1000
    assert memory.free_memory() == 650


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    group = {
        "memory__limit_in_bytes": "500",
        "memory__usage_in_bytes": "600",
        "memory__stat": "total_inactive_file 10",
    }
    write(tmp_path / "memory", **group)
    (tmp_path / "membership").write_text("4:cpu,memory:/docker/elsewhere\n3:cpu:/\n")
    assert memory.total_memory() == 500
    assert memory.free_memory() == 0


@pytest.mark.parametrize("membership", [None, "0::/\n"])
def test_without_limits_the_machine_counts(tmp_path: Path, membership: str | None) -> None:
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    assert memory.total_memory() == 1 << 36
    assert memory.free_memory() == 32 * GIB


# In a process of its own: in this one, freed memory of earlier tests can serve the block without a new page.
PEAK = """
import numpy as np
from shared.system import memory
before = memory.resident_memory()
block = np.ones(64 << 20, np.uint8)
held = memory.resident_memory()
del block
print(before, held, memory.resident_memory(), memory.peak_memory())
"""


def test_a_process_holds_at_most_its_peak() -> None:
    before, held, after, peak = map(int, subprocess.check_output([sys.executable, "-c", PEAK]).split())
    assert before > 1 << 20
    assert held - before > 60 << 20
    assert held - after > 60 << 20
    assert after > 1 << 20
    assert held - peak < 1 << 20, "the kernel's two counts differ by some pages"
