"""The interpreter that the parts run in: this one, or one with the packages that it lacks. Needs no packages itself.

What is installed goes into an environment below the user's cache folder; this interpreter and the repository stay as
they are. Packages that are here already, such as a torch built for the GPU, are used. pip reads its own
variables (PIP_FIND_LINKS, PIP_NO_INDEX) where packages come from a folder.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_TESTS = ("pytest", "pytest-timeout", "hypothesis", "httpx")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ownlm" / "gpu-benchmark"


class InstallError(RuntimeError):
    """Packages could not be installed."""


def required_packages() -> list[str]:
    """What the trainer, the inference service and the tests need, with their versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["http"], *_TESTS]


def missing_packages(required: list[str]) -> list[str]:
    """Those that this interpreter does not have in any version."""
    return [requirement for requirement in required if _installed(_name(requirement)) is None]


def prepare(seconds: float) -> str:
    """Return the interpreter to run the parts with.

    Args:
        seconds: That installing may take.

    Raises:
        InstallError: With pip's message, or since it took too long.
    """
    missing = missing_packages(required_packages())
    return install("packages", missing, seconds) if missing else sys.executable


def install(name: str, packages: list[str], seconds: float, constraints: str = "constraints.txt") -> str:
    """Install packages into an environment that sees this interpreter's own, and return its interpreter.

    Args:
        name: Of the environment.
        packages: As pip takes them.
        seconds: That it may take.
        constraints: The file with the versions; those of packages that are here already do not count.

    Raises:
        InstallError: With pip's message, or since it took too long.
    """
    folder = _CACHE / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        try:
            venv.create(folder, with_pip=True, clear=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InstallError(
                f"no virtual environment in {folder}: {error} (Debian has it in python3-venv)"
            ) from error
    _see_own_packages(folder)
    limits = folder / "constraints.txt"
    pins = (ROOT / constraints).read_text().splitlines()
    limits.write_text("\n".join(pin for pin in pins if _installed(_name(pin)) is None))
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(limits)]
    try:
        done = subprocess.run([*command, *packages], capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"pip took more than {seconds:.0f} s for {' '.join(packages)}") from error
    if done.returncode:
        raise InstallError(f"pip could not install {' '.join(packages)}: {done.stderr.strip()[-500:]}")
    return str(python)


def _see_own_packages(folder: Path) -> None:
    """Let the environment see this interpreter's packages, also where this one is a virtual environment itself."""
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages / "own.pth").write_text("\n".join(own) + "\n")


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]


def _installed(name: str) -> str | None:
    try:
        return version(name) if name else None
    except PackageNotFoundError:
        return None
