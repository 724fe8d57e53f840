"""The metrics page, of one process and of several that share a port."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.http import HttpMetrics

WORKER = """
import sys
from shared.http import HttpMetrics
metrics = HttpMetrics()
for _ in range(int(sys.argv[1])):
    metrics.count_request("POST", "/encode", 200, 0.002)
metrics.in_flight.inc()
metrics.refusals.labels("queue_full").inc()
if len(sys.argv) > 2:
    print(metrics.render().decode())
"""


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_one_process() -> None:
    metrics = HttpMetrics()
    metrics.count_request("GET", "/x", 200, 0.3)
    metrics.count_request("GET", "/x", 404, 3.0)
    page = samples(metrics.render().decode())
    labels = (("method", "GET"), ("route", "/x"))
    assert page["ownlm_http_request_duration_seconds_count", labels] == 2
    assert page["ownlm_http_request_duration_seconds_sum", labels] == 3.3
    assert page["ownlm_http_request_duration_seconds_bucket", (("le", "0.25"), *labels)] == 0
    assert page["ownlm_http_request_duration_seconds_bucket", (("le", "0.5"), *labels)] == 1
    assert page["process_open_fds", ()] > 0


@pytest.mark.extended
def test_several_processes_answer_with_their_sum(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WORKER, "2"], env=environment, check=True)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, "3", "show"], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    page = samples(done.stdout)
    labels = (("method", "POST"), ("route", "/encode"))
    assert page["ownlm_http_requests_total", (*labels, ("status", "200"))] == 5
    assert page["ownlm_http_request_duration_seconds_bucket", (("le", "0.0025"), *labels)] == 5
    assert page["ownlm_refused_requests_total", (("reason", "queue_full"),)] == 2
    assert ("process_open_fds", ()) not in page
