"""The services' images install what pyproject.toml says they need: no torch, no trainer, no compiler on x86-64."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.inference.engine.runner.cpu import kernels as step_kernels
from services.inference.engine.sampler import kernels as sampler_kernels
from shared.bpe import kernels as bpe_kernels
from shared.kernels import object_file

ROOT = Path(__file__).resolve().parents[2]
OF_THE_TRAINER = {"cyclopts", "fsspec", "matplotlib", "pyarrow", "pyyaml", "rich", "sympy", "torch", "xxhash"}
OF_THE_MODEL = {"jinja2", "safetensors"}
COMPILER = {"llvmlite", "numba"}
# Imported by every Python that finds it first in its path.
SITE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} in this image", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    ("service", "unneeded"), [("inference", OF_THE_TRAINER), ("tokenizer", OF_THE_TRAINER | OF_THE_MODEL)]
)
def test_the_requirements_are_those_of_the_project_without_what_only_others_need(
    service: str, unneeded: set[str]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = set()
    for requirement in {*project["dependencies"], *extras["http"], *extras["otel"]}:
        name = requirement.partition(">=")[0]
        if name not in unneeded:
            wanted.add(requirement + "; platform_machine != 'x86_64'" * (name in COMPILER))
    lines = (ROOT / "services" / service / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in lines if not line.startswith("#")) == sorted(wanted)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("service", "path", "body", "unneeded"),
    [
        ("tokenizer", "/encode", {"text": "the quick fox"}, OF_THE_TRAINER | OF_THE_MODEL),
        ("inference", "/generate", {"prompt": "the", "max_tokens": 4}, OF_THE_TRAINER),
    ],
)
def test_a_service_answers_without_what_its_image_lacks(
    process: Callable[..., Any],
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    path: str,
    body: dict[str, object],
    unneeded: set[str],
) -> None:
    """In all of its processes, an import of any of it fails."""
    object_file.load_all([bpe_kernels.__name__, step_kernels.__name__, sampler_kernels.__name__])  # compiled by now
    absent = unneeded - {"pyyaml"} | COMPILER | {"trainer", "transformers", "yaml"}
    (tmp_path / "sitecustomize.py").write_text(SITE.format(absent=absent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    served = process("-m", f"services.{service}", model_dir=model_dir).wait_ready()
    answer = httpx.post(f"{served.url}{path}", json=body)
    assert answer.status_code == 200, answer.text
