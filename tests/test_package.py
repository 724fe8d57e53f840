"""An installed package has every file that its code reads."""

import re
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
        if path.suffix in {".py", ".Dockerfile"} or path.name in NOT_INSTALLED:
            continue
        assert _is_listed(path, patterns), f"{name} is not installed: list it under [tool.setuptools.package-data]"


def test_what_is_said_to_be_installed_can_be() -> None:
    """ownlm is in no package index: its extras are installed from the checkout, by names that exist."""
    command = ["git", "grep", "--untracked", "-hE", r"pip install|\.\[[a-z]"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not re.findall(r"pip install [^\n]*ownlm\[.*", lines)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {name for group in re.findall(r"'\.\[([\w,-]+)\]'", lines) for name in group.split(",")}
    assert len(named) > 5
    assert named <= extras.keys()


def _is_listed(path: PurePosixPath, patterns: dict[str, list[str]]) -> bool:
    """Whether a pattern of a package above the file matches its path from there on."""
    for folder in path.parents:
        inside = path.relative_to(folder)
        listed = patterns.get(".".join(folder.parts), []) + patterns.get("*", [])
        if any(inside.match(pattern) for pattern in listed if len(PurePosixPath(pattern).parts) == len(inside.parts)):
            return True
    return False
