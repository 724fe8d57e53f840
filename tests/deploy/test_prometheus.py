"""Prometheus itself reads the files in deploy/observe, scrapes the services under load, and answers their queries.

Opt-in: `make observe`, or `pytest -m observe`. Needs Debian's package prometheus, which promtool belongs to.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import yaml

from tests.deploy.observe_files import OBSERVE, dashboard_queries, load, metric_names, rules
from tests.ports import free_port
from tests.services.conftest import wait_until
from tests.trainer.report.test_page import make_run

SCRAPED = 0.5  # seconds
KEY = "only-for-this-test"
LOAD_SECONDS = 12

pytestmark = [
    pytest.mark.observe,
    pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: apt-get install prometheus"),
]


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", "--syntax-only", OBSERVE / "prometheus.yml")
    promtool("check", "rules", OBSERVE / "alerts.yml")


def test_every_alert_fires_and_is_resolved() -> None:
    promtool("test", "rules", OBSERVE / "alerts_test.yml")


@contextmanager
def prometheus(folder: Path, targets: dict[str, str], key: str = "") -> Iterator[str]:
    """Prometheus with our configuration, but the targets that each job has here; gives its address.

    `key` is the content of the file that is empty where the services need no key.
    """
    config = load("prometheus.yml")
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{int(SCRAPED * 1000)}ms")
    config["rule_files"] = [str(OBSERVE / "alerts.yml")]
    (folder / "key").write_text(key)
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] in targets]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [urlsplit(targets[job["job_name"]]).netloc]}]
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(folder / "key")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            wait_until(lambda: is_ready(f"http://{address}/-/ready"), timeout=60)
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def ask(api: str, path: str, **parameters: str) -> Any:
    answer = httpx.get(f"{api}/{path}", params=parameters).json()
    assert answer["status"] == "success", answer
    return answer["data"]


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """`watch` over a run whose lock a child process holds, as training does."""
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)"
    port = free_port()
    watch = [sys.executable, "-m", "trainer", "watch", str(folder), "--port", str(port)]
    commands = [[sys.executable, "-c", hold, str(folder / ".lock")], watch]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    try:
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}/metrics"), timeout=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
            process.wait()


def put_under_load(inference: str, tokenizer: str) -> None:
    """Answers, streams, prefix hits, errors and refusals, for a while."""
    prompt = "Once upon a time there was a little fox. The fox had a red ball. " * 2
    end = time.monotonic() + LOAD_SECONDS
    with httpx.Client(timeout=60, headers={"Authorization": f"Bearer {KEY}"}) as client:
        while time.monotonic() < end:
            client.post(f"{inference}/generate", json={"prompt": prompt, "max_tokens": 16, "n": 4, "ignore_eos": True})
            client.post(f"{inference}/generate", json={"prompt": "fox", "max_tokens": 8, "stream": True})
            client.post(f"{inference}/generate", json={"prompt": 1})
            client.post(f"{inference}/generate", content=b"x" * 2_000_000)
            client.get(f"{inference}/nothing")
            client.post(f"{tokenizer}/encode", json={"text": prompt})
            client.post(f"{tokenizer}/encode", json={})


def drain(process: Any) -> None:
    threading.Thread(target=process.popen.stdout.read, daemon=True).start()


def test_what_is_asked_for_is_there_under_load(process: Callable[..., Any], model_dir: Path, tmp_path: Path) -> None:
    inference = process(
        "-m", "services.inference", model_dir=model_dir, threads=1, max_body_bytes=1_000_000, api_keys=KEY
    )
    tokenizer = process("-m", "services.tokenizer", model_dir=model_dir)
    run = make_run(tmp_path / "run", end=2.0)
    record = run / "run.json"
    record.write_text(record.read_text().replace('"starts"', '"tokens": 9999, "starts"'))
    for service in (inference.wait_ready(), tokenizer.wait_ready()):
        drain(service)
    with (
        watching(run) as watch,
        prometheus(tmp_path, {"inference": inference.url, "tokenizer": tokenizer.url, "training": watch}, KEY) as api,
    ):
        loads = [threading.Thread(target=put_under_load, args=(inference.url, tokenizer.url)) for _ in range(3)]
        for thread in loads:
            thread.start()
        for thread in loads:
            thread.join()
        targets = ask(api, "targets")["activeTargets"]
        assert {target["labels"]["job"]: target["health"] for target in targets} == dict.fromkeys(
            ("inference", "tokenizer", "training"), "up"
        )
        names = set(ask(api, "label/__name__/values"))
        assert metric_names() - names == set()
        empty = [
            (title, query)
            for title, query in dashboard_queries()
            if not [one for one in ask(api, "query", query=query)["result"] if one["value"][1] != "NaN"]
        ]
        assert empty == [], "panels without anything to show"
        loaded = [rule for group in ask(api, "rules")["groups"] for rule in group["rules"]]
        assert {rule["name"]: rule["health"] for rule in loaded} == {rule["alert"]: "ok" for rule in rules()}
        assert ask(api, "alerts")["alerts"] == []
        check_that_a_restart_is_noticed(api, inference)


def check_that_a_restart_is_noticed(api: str, inference: Any) -> None:
    [worker] = psutil.Process(inference.popen.pid).children()
    os.kill(worker.pid, signal.SIGKILL)

    wait_until(lambda: is_firing(api, "EngineRestarts"), timeout=60)


def is_firing(api: str, alert: str) -> bool:
    alerts = ask(api, "alerts")["alerts"]
    return any(one["labels"]["alertname"] == alert and one["state"] == "firing" for one in alerts)


def test_a_service_that_ends_again_and_again_is_noticed(
    process: Callable[..., Any], model_dir: Path, tmp_path: Path
) -> None:
    """What runs it starts it each time, so that it is hardly ever down."""
    port = free_port()

    def starts_seen() -> int:
        [values] = ask(api, "query", query='process_start_time_seconds{job="tokenizer"}[5m]')["result"] or [{}]
        return len({value for _, value in values.get("values", [])})

    with prometheus(tmp_path, {"tokenizer": f"http://127.0.0.1:{port}"}) as api:
        for number in range(4):
            assert not is_firing(api, "ServiceRestarts")
            service = process("-m", "services.tokenizer", model_dir=model_dir, port=port)
            wait_until(lambda number=number: starts_seen() == number + 1, timeout=60)
            service.popen.kill()
        wait_until(lambda: is_firing(api, "ServiceRestarts"), timeout=60)
