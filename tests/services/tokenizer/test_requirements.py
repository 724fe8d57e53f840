"""The tokenizer image installs what pyproject.toml says the service needs, and no torch."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OF_THE_TRAINER = {
    "cyclopts",
    "jinja2",
    "matplotlib",
    "psutil",
    "pyarrow",
    "pyyaml",
    "rich",
    "safetensors",
    "sympy",
    "torch",
}


def test_the_requirements_are_those_of_the_project_without_what_only_others_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = {*project["dependencies"], *project["optional-dependencies"]["http"]}
    wanted = {requirement for requirement in everything if requirement.split(">=")[0] not in OF_THE_TRAINER}
    lines = (ROOT / "services" / "tokenizer" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in lines if not line.startswith("#")) == sorted(wanted)
