"""`docker-compose.observe.yml` with Debian's Prometheus: it finds services and runs, and shows a run that was killed.

Opt-in like `test_compose.py`. Grafana, the collector and Jaeger are images of registries, and not started here.
"""

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker.test_compose import IMAGES, base_image, compose, engine, run, wait_until_ready
from tests.ports import free_port
from tests.services.conftest import model_dir, tokenizer
from tests.trainer.report.test_page import make_run
from trainer.runs.record import record_start

__all__ = ["engine", "model_dir", "tokenizer"]

PROMETHEUS = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
"""
PROJECT = "ownlm-observe-test"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(20 * 60)]


@pytest.fixture(scope="module")
def prometheus_image() -> str:
    flags = os.environ.get("DOCKER_BUILD_FLAGS", "").split()
    command = ["docker", "build", *flags, "-t", "localhost/ownlm-test-prometheus", "-"]
    subprocess.run(command, input=PROMETHEUS.format(base=base_image()), text=True, check=True)
    return command[-2]


@pytest.fixture
def observed(prometheus_image: str, model_dir: Path, tmp_path: Path) -> Iterator[str]:
    """The address of Prometheus; the run in `tmp_path` was killed on this machine."""
    folder = make_run(tmp_path / "runs" / "lost", end=2.0, finished=False)
    record_start(
        folder / "run.json", settings={}, data={}, parameters=9, trained_parameters=9, tokens=99, step=0, device="cpu"
    )
    tmp_path.chmod(0o755)
    ports = {f"{name}_PORT": str(free_port()) for name in ("INFERENCE", "TOKENIZER", "WATCH", "PROMETHEUS")}
    env = ports | {
        "PROMETHEUS_IMAGE": prometheus_image,
        "RUNS": str(tmp_path / "runs"),
        "RUNS_HOSTNAME": platform.node(),
    }
    command = [*compose(), "-p", PROJECT, "-f", "docker-compose.yml", "-f", "docker-compose.observe.yml"]
    copy = "cp -r /source /models/demo && chown -R ownlm /models && chmod -R a+rX /models"
    volumes = ["-v", f"{PROJECT}_models:/models", "-v", f"{model_dir}:/source:ro"]
    try:
        run("docker", "run", "--rm", "-u", "0", *volumes, IMAGES["train"][0], "sh", "-c", copy)
        run(*command, "up", "-d", "--no-build", "proxy", "tokenizer", "watch", "prometheus", env=env)
        for name in ("INFERENCE", "TOKENIZER"):
            wait_until_ready(f"http://127.0.0.1:{ports[f'{name}_PORT']}")
        yield f"http://127.0.0.1:{ports['PROMETHEUS_PORT']}/api/v1"
    finally:
        run(*command, "down", "-v", "--timeout", "15", env=env)


def test_prometheus_finds_all_and_sees_that_a_run_was_killed(observed: str) -> None:
    def ask(path: str) -> Any:
        return httpx.get(f"{observed}/{path}").json()["data"]

    all_up = dict.fromkeys(("inference", "tokenizer", "training"), "up")
    deadline = time.monotonic() + 90
    found: dict[str, str] = {}
    firing: list[tuple[str, str]] = []
    while time.monotonic() < deadline and not (firing and found == all_up):
        time.sleep(2)
        found = {target["labels"]["job"]: target["health"] for target in ask("targets")["activeTargets"]}
        alerts = [alert["labels"] for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]
        firing = [(alert["alertname"], alert["run"]) for alert in alerts if "run" in alert]
    assert found == all_up
    assert firing == [("RunEnded", "lost")]
