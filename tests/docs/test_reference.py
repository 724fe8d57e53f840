"""docs/reference says what the code does: its options, settings, metrics, files."""

import asyncio
import importlib.util
import os
import re
from types import ModuleType

import pytest

from services.inference.metrics import InferenceMetrics
from shared.http import ServiceSettings
from tests.docs.pages import DOCS, ROOT, pages
from trainer.watch.exporter import Exporter

_NOT_SETTINGS = {"cache_dir", "data"}  # of the kernels, and of the tests


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current(script: ModuleType) -> None:
    for page, text in script.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run python scripts/reference.py"


def test_every_setting_that_is_named_exists() -> None:
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings

    fields = {*ServiceSettings.model_fields, *InferenceSettings.model_fields, *TokenizerSettings.model_fields}
    for page in pages():
        named = {name.lower() for name in re.findall(r"OWNLM_([A-Z_]+[A-Z])", page.read_text(encoding="utf-8"))}
        assert named <= fields | _NOT_SETTINGS, page


def test_every_metric_is_described_and_no_other() -> None:
    names = set()
    training = asyncio.run(Exporter([]).text())
    for line in (InferenceMetrics(lambda: None, os.getpid).render() + training).decode().splitlines():
        if line.startswith("# TYPE ownlm_"):
            names.add(line.split()[2])
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(ownlm_[a-z_]+)", page)) == names


def test_compose_leaves_more_time_to_end_than_the_services_take() -> None:
    seconds = re.findall(r"stop_grace_period: (\d+)s", (ROOT / "docker-compose.yml").read_text())
    assert len(seconds) == 3
    assert min(map(int, seconds)) > ServiceSettings.model_fields["shutdown_timeout"].default + 2
