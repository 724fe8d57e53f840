"""The monitoring files against the code: names of metrics, labels, ports, images. test_prometheus.py uses them."""

import asyncio
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from services.tokenizer.settings import TokenizerSettings
from tests.deploy.observe_files import OBSERVE, ROOT, dashboard, load, metric_names, panels, rules
from tests.docs.test_reference import _table_of_codes
from tests.trainer.report.test_page import make_run
from trainer.watch.exporter import Exporter
from trainer.watch.server import PORT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.observe.yml").read_text(encoding="utf-8"))["services"]
OURS = {"inference": 8000, "tokenizer": 8001, "watch": PORT}


def exported(run: Path) -> set[str]:
    """The names that the services and `watch` export, as Prometheus stores them."""
    metrics = InferenceMetrics(lambda: None)
    metrics.count_request("POST", "/generate", 200, 0.1)
    metrics.count_refusal("queue_full")
    text = metrics.render().decode() + asyncio.run(Exporter([run]).text()).decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    model = {name.replace("process_", "ownlm_model_process_", 1) for name in names if name.startswith("process_")}
    return names | model


def test_every_metric_that_is_asked_for_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", end=2.0)
    names = exported(run) | {"ownlm_train_planned_tokens", "ownlm_train_resident_memory_bytes"}
    assert metric_names() - names == set()
    shown = {"ownlm_http_requests_total", "ownlm_waiting_rows", "ownlm_running_rows", "ownlm_kv_blocks_used"}
    shown |= {f"ownlm_{name}_seconds_bucket" for name in ("time_to_first_token", "time_between_tokens", "queue")}
    shown |= {"ownlm_prefix_tokens_hit_total", "ownlm_engine_restarts_total", "process_resident_memory_bytes"}
    shown |= {f"ownlm_train_{name}" for name in ("loss", "tokens_per_second", "learning_rate", "step")}
    assert shown <= metric_names()


def reasons_in_rules() -> set[str]:
    found = [re.findall(r'reason=~?"([^"]+)"', rule["expr"]) for rule in rules()]
    return {reason for one in found for group in one for reason in group.split("|")}


def test_reasons_in_rules_are_codes_of_errors() -> None:
    assert reasons_in_rules() <= _table_of_codes().keys()


def test_no_alert_waits_for_what_a_service_says_before_it_ends() -> None:
    """A state that ends the process is scraped once at most: no rate is ever above 0."""
    assert "failed" not in reasons_in_rules()


def test_every_refusal_of_a_service_has_an_alert() -> None:
    """`RequestsFail` does not count 503."""
    elsewhere = {"failed": "ServiceRestarts", "engine_restarted": "EngineRestarts", "no_replica": "NoReplicaReady"}
    assert set(elsewhere.values()) <= {rule["alert"] for rule in rules()}
    expected = {code for code, (status, _) in _table_of_codes().items() if status == 503} - {"draining"}
    assert expected - reasons_in_rules() == elsewhere.keys()


def test_counters_in_the_tests_of_alerts_begin_as_real_ones_do() -> None:
    """A counter with labels appears with its first event; `rate` does not see that one."""
    series = [one for test in load("alerts_test.yml")["tests"] for one in test["input_series"]]
    counters = [one for one in series if "reason=" in one["series"] or "status=" in one["series"]]
    assert len(counters) > 5
    assert not [one for one in counters if re.match(r"0|_x\d+ 0", one["values"])]


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    known = {source["uid"] for source in load("grafana/provisioning/datasources/datasources.yml")["datasources"]}
    for panel in panels():
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["datasource"]["uid"] in known
        assert panel["targets"]
        assert all(target["datasource"]["uid"] in known for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    for one, other in combinations(board["panels"], 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    assert one["x"] + one["w"] <= 24
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    return not (beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"])


def test_every_alert_is_tested_before_during_and_after_its_cause() -> None:
    tested: dict[str, list[bool]] = {}
    for test in load("alerts_test.yml")["tests"]:
        for case in test["alert_rule_test"]:
            tested.setdefault(case["alertname"], []).append(bool(case.get("exp_alerts")))
    assert tested == {rule["alert"]: [False, True, False] for rule in rules()}
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert {"summary", "action"} == set(rule["annotations"])


def test_targets_are_where_the_services_listen() -> None:
    targets = {
        one["dns_sd_configs"][0]["names"][0]: one["dns_sd_configs"][0]["port"]
        for one in load("prometheus.yml")["scrape_configs"]
    }
    assert targets == OURS
    assert OURS["inference"] == InferenceSettings.model_fields["port"].default
    assert OURS["tokenizer"] == TokenizerSettings.model_fields["port"].default


def test_prometheus_sends_a_key_to_the_services_that_may_need_one() -> None:
    with_keys = yaml.safe_load((ROOT / "docker-compose.keys.yml").read_text(encoding="utf-8"))["services"]
    [secret] = COMPOSE["prometheus"]["secrets"]
    sent = {one["job_name"]: one.get("authorization") for one in load("prometheus.yml")["scrape_configs"]}
    credentials = {"credentials_file": f"/run/secrets/{secret}"}
    assert sent == {"training": None} | dict.fromkeys(with_keys, credentials)


def test_spans_go_to_the_collector_and_on_to_what_shows_them() -> None:
    collector = load("collector.yml")
    [pipeline] = collector["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(collector[kind])
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    for service, settings in (("inference", InferenceSettings), ("tokenizer", TokenizerSettings)):
        assert COMPOSE[service]["environment"] == {"OWNLM_OTLP_ENDPOINT": f"http://collector:{port}"}
        assert "otlp_endpoint" in settings.model_fields
    assert collector["exporters"]["otlp"]["endpoint"].partition(":")[0] in COMPOSE


@pytest.mark.parametrize("name", sorted(COMPOSE.keys() - {"inference", "tokenizer"}))
def test_containers_have_limits_and_only_this_machine_reaches_them(name: str) -> None:
    service: dict[str, Any] = COMPOSE[name]
    assert service["mem_limit"] == service["memswap_limit"]
    assert service["pids_limit"] == 1024
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert all("size=" in mount for mount in service.get("tmpfs", []))
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name != "watch":
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[\w./-]+:v?\d+\.\d+\.\d+\}", service["image"]), "pinned, replaceable"
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        assert not source.startswith("./") or (ROOT / source).exists()


def test_every_file_is_mounted_or_named() -> None:
    mounted = str(COMPOSE)
    for path in OBSERVE.rglob("*"):
        name = path.relative_to(ROOT)
        if path.is_file() and path.name != "alerts_test.yml":
            assert any(f"./{part}:" in mounted for part in (name, *name.parents)), name
