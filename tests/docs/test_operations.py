"""docs/operations.md says what the code does: its settings, its metrics, its files."""

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from services.inference.metrics import InferenceMetrics
from shared.http import ServiceSettings

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_tables", ROOT / "scripts" / "settings_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_settings_are_those_of_the_classes(script: ModuleType) -> None:
    assert script.with_tables(PAGE) == PAGE, "run: python scripts/settings_tables.py"


def test_every_setting_that_is_spoken_of_exists() -> None:
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings

    fields = {*ServiceSettings.model_fields, *InferenceSettings.model_fields, *TokenizerSettings.model_fields}
    spoken_of = {name.lower() for name in re.findall(r"OWNLM_([A-Z_]+[A-Z])", PAGE)}
    assert spoken_of - fields == {"cache_dir"}, "the kernels' own variable is no setting of a service"


def test_every_metric_is_described_and_no_other() -> None:
    names = set()
    for line in InferenceMetrics(lambda: None, os.getpid).render().decode().splitlines():
        if line.startswith("# TYPE ownlm_"):
            names.add(line.split()[2])
    described = set(re.findall(r"`(ownlm_[a-z_]+)", PAGE.split("## Metrics")[1].split("Useful alerts")[0]))
    assert described == names


def test_compose_leaves_more_time_to_end_than_the_services_take() -> None:
    seconds = re.findall(r"stop_grace_period: (\d+)s", (ROOT / "docker-compose.yml").read_text())
    assert len(seconds) == 2
    assert min(map(int, seconds)) > ServiceSettings.model_fields["shutdown_timeout"].default + 2
