"""Every example of the pages on the HTTP API, and those of README.md, run against both services and succeed."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.extended

_ROOT = Path(__file__).parents[2]
_PAGES = [*sorted((_ROOT / "docs" / "reference").glob("*-api.md")), _ROOT / "README.md"]
_CURL = 'curl() { command curl -sS --fail-with-body --max-time 240 "$@" && echo; }\n'


def examples(language: str) -> list[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in _PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_every_example_runs(
    process: Callable[..., Any], model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(model_dir, tmp_path / "demo")
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}<|e|>{% endfor %}assistant:"
    (tmp_path / "demo" / "chat_template.jinja").write_text(template)
    settings = {"model_dir": tmp_path / "demo", "model_name": "demo"}
    services = [
        process("-m", "services.inference", threads=1, **settings),
        process("-m", "services.tokenizer", **settings),
    ]
    urls = {
        f"http://127.0.0.1:{port}": service.wait_ready().url
        for port, service in zip((8000, 8001), services, strict=True)
    }

    def at_these(example: str) -> str:
        return re.sub(r"http://127\.0\.0\.1:\d+", lambda match: urls[match[0]], example)

    shell, python = [example for example in examples("sh") if "curl " in example], examples("python")
    assert sum(example.count("curl ") for example in shell) >= 8
    assert len(python) >= 3
    for example in shell:
        command = ["bash", "-e", "-o", "pipefail", "-c", _CURL + at_these(example)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=300)
        assert ran.returncode == 0, f"{example}\n{ran.stdout}\n{ran.stderr}"
        assert ran.stdout.strip(), example
        assert '"error"' not in ran.stdout, f"{example}\n{ran.stdout}"
    for example in python:
        exec(compile(at_these(example), "an example", "exec"), {})
    assert capsys.readouterr().out.strip(), "the streams print what they read"
