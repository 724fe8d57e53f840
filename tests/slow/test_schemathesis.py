"""Both services against their own OpenAPI documents: schemathesis, every check on, and never a 5xx."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "schemathesis-key"
SECONDS = 60

# A schema cannot say what 400 is for: ids that the vocabulary does not have, prompts beyond the context.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "404"]

# A list with more messages than are allowed can also be larger than any body may be.
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "404", "405", "413", "415", "422"]
"""

# To JSON Schema 7.0 is an integer; to these services it is a float, which is refused as a number of tokens or an id.
HOOKS = """
import schemathesis

def whole(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return value

@schemathesis.hook
def map_body(context, body):
    return whole(body)
"""


@pytest.mark.parametrize("service", ["tokenizer", "inference"])
def test_the_document_is_true(process: Callable[..., Any], model_dir: Path, tmp_path: Path, service: str) -> None:
    running = process(
        "-m", f"services.{service}", model_dir=model_dir, api_keys=KEY, max_body_bytes=1_000_000, default_max_tokens=4
    ).wait_ready()
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(running.popen.stdout))  # a full pipe would stop the service
    reader.start()
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    (tmp_path / "hooks.py").write_text(HOOKS)
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run",
            f"{running.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--checks", "all",
            "--continue-on-failure", "--max-time", str(SECONDS), "--max-response-time", "9", "--seed", "1",
        ],
        cwd=tmp_path, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    running.terminate()
    reader.join()
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert (running.popen.wait(), running.popen.stderr.read()) == (0, "")
    entries = [json.loads(line) for line in lines]
    statuses = Counter(entry["status"] for entry in entries if entry["event"] == "request")
    assert {status for status in statuses if status >= 500} <= {503}, statuses
    assert not [entry for entry in entries if entry["level"] == "error"]
    assert statuses[200] > 20
