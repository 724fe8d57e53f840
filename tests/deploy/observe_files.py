"""The dashboard, the rules and the configuration in deploy/observe, and the metrics that they use."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
OBSERVE = ROOT / "deploy" / "observe"
METRIC = re.compile(r"\b(?:ownlm|process)_[a-z0-9_]+")


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((OBSERVE / "grafana" / "dashboards" / "ownlm.json").read_text("utf-8"))
    return content


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and query, as Grafana sends it to Prometheus."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$run", ".*")
            yield panel["title"], query


def rules() -> list[dict[str, Any]]:
    groups = load("alerts.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((OBSERVE / name).read_text(encoding="utf-8"))
    return content


def metric_names() -> set[str]:
    """All metrics that queries, rules and variables use."""
    queries = [query for _, query in dashboard_queries()] + [rule["expr"] for rule in rules()]
    variables = [variable["definition"] for variable in dashboard()["templating"]["list"]]
    return {name for query in queries + variables for name in METRIC.findall(query)}
