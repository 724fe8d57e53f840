from pathlib import Path

from shared.system import free_memory


class TestControlGroups:
    def write(self, folder: Path, **files: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(content)

    def test_each_limit_on_the_way_up_counts_and_page_cache_gives_way(self, tmp_path: Path) -> None:
        stat = "anon 1\ninactive_file 50\n"
        self.write(tmp_path / "a", memory__max="1000", memory__current="400", memory__stat=stat)
        self.write(tmp_path / "a" / "b", memory__max="max", memory__current="300", memory__stat=stat)
        (tmp_path / "membership").write_text("0::/a/b\n")
        assert free_memory._cgroup_rooms(tmp_path, tmp_path / "membership") == [650]

    def test_the_first_version_of_control_groups(self, tmp_path: Path) -> None:
        group = {
            "memory__limit_in_bytes": "500",
            "memory__usage_in_bytes": "600",
            "memory__stat": "total_inactive_file 10",
        }
        self.write(tmp_path / "memory", **group)
        (tmp_path / "membership").write_text("4:cpu,memory:/docker/elsewhere\n3:cpu:/\n")
        assert free_memory._cgroup_rooms(tmp_path, tmp_path / "membership") == [0]

    def test_without_control_groups_there_is_no_limit(self, tmp_path: Path) -> None:
        assert free_memory._cgroup_rooms(tmp_path, tmp_path / "none") == []
