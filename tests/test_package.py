"""An installed package has every file that its code reads."""

import subprocess
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
NOT_INSTALLED = {"Dockerfile", "requirements.txt"}


def test_data_files_are_listed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]
    command = ["git", "ls-files", "shared", "services", "trainer"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split():
        path = PurePosixPath(name)
        if path.suffix == ".py" or path.name in NOT_INSTALLED:
            continue
        listed = any(
            path.relative_to(parent).match(pattern) and pattern.count("/") == str(path.relative_to(parent)).count("/")
            for parent in path.parents  # a folder that is no package belongs to the package around it
            for pattern in patterns.get(".".join(parent.parts), [])
        )
        assert listed, f"{name} is not installed: list it under [tool.setuptools.package-data]"
