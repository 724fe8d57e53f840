"""What the compose files say of limits. That they are kept, `test_compose.py` tries with a Docker engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.case("D56")


def services(name: str) -> dict[str, Any]:
    file: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return dict(file["services"])


@pytest.mark.parametrize("name", ["train", "tokenizer", "inference", "proxy"])
def test_no_container_can_take_all_of_the_host(name: str) -> None:
    service = services("docker-compose.yml")[name]
    variable, memory = re.fullmatch(r"\$\{(\w+):-(\d+g)\}", service["mem_limit"]).groups()  # type: ignore[union-attr]
    assert service["memswap_limit"] == service["mem_limit"], "no swap"
    assert service["pids_limit"] == 1024
    assert service["tmpfs"][0] == "/tmp:size=64m"
    assert all("size=" in mount for mount in service["tmpfs"])
    assert service["logging"] == {"driver": "local"}, "which limits its files"
    assert f"| `{variable}` | {memory} |" in DEPLOY


def test_the_driver_for_a_gpu_is_described_where_the_compose_file_says() -> None:
    comment = (ROOT / "docker-compose.gpu.yml").read_text(encoding="utf-8").partition("\n\n")[0].replace("\n# ", " ")
    version, page = re.search(r"driver is (\d+) or newer \((docs/\S+\.md)\)", comment).groups()  # type: ignore[union-attr]
    assert f"driver {version} or newer" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["train", "inference"])
def test_on_a_gpu_host_there_is_more(name: str) -> None:
    service = services("docker-compose.gpu.yml")[name]
    assert service["mem_limit"] == f"${{{name.upper()}_MEMORY:-8g}}" == service["memswap_limit"]
    assert "| 8g |" in DEPLOY
