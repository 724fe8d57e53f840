"""lm-evaluation-harness, with its `local-completions`, computes the perplexity that `trainer evaluate` does.

Figures are printed: `pytest -m slow -s tests/clients/test_lm_eval.py`. `OWNLM_LM_EVAL_MODEL` and `OWNLM_LM_EVAL_TEXT`
name a model folder, and a text whose documents are separated by `<|endoftext|>`, to use instead of the tests' own.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm-eval is not installed: ownlm[clients]"),
]

# The rolling perplexity of a text as the harness' own wikitext task has it, with a file of ours.
TASK = """
task: stories
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
metadata: {{version: 1.0}}
"""
# Shorter than a window, as long as several, and one that is not ASCII.
STORIES = [
    "Once upon a time there was a little fox.",
    "The fox had a red ball and a friend called Anna. " * 12,
    "Anna naïvely said: « É um prazer », and 🦊 the fox laughed.\n\nThe end. ",
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = os.environ.get("OWNLM_LM_EVAL_TEXT")
    stories = Path(text).read_text(encoding="utf-8").split("<|endoftext|>")[:100] if text else STORIES
    path = tmp_path_factory.mktemp("texts") / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories if story), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_perplexity_is_the_trainers(
    process: Callable[..., Any],
    model_dir: Path,
    documents: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
) -> None:
    folder = Path(os.environ.get("OWNLM_LM_EVAL_MODEL", model_dir))
    service = process("-m", "services.inference", model_dir=folder, model_name="stories", threads=1).wait_ready()
    threading.Thread(target=service.popen.stdout.read, daemon=True).start()
    context = httpx.get(f"{service.url}/v1/models").json()["data"][0]["max_model_len"]

    (tmp_path / "stories.yaml").write_text(TASK.format(documents=documents), encoding="utf-8")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    settings = {
        "model": "stories",
        "base_url": f"{service.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": folder,
        "max_length": context,
        "num_concurrent": 4,
    }
    run(
        "-m", "lm_eval", "--model", "local-completions", "--tasks", "stories", "--include_path", tmp_path,
        "--model_args", ",".join(f"{name}={value}" for name, value in settings.items()),
        "--batch_size", batch_size, "--output_path", tmp_path / "results",
    )  # fmt: skip
    [path] = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]["stories"]

    # The harness takes one token off for what is generated, and one for the token that a window begins with.
    ours = run(
        "-m", "trainer", "evaluate", folder, documents, "--json", "--window", context - 2, "--last-window", "full",
        "--device", "cpu",
    )  # fmt: skip
    total = json.loads(ours)["total"]
    harness_nats = results["bits_per_byte,none"] * math.log(2) * total["bytes"]
    loss = harness_nats / total["tokens"]
    print(
        f"\n{total['documents']} documents, {total['tokens']} tokens: nats per token {loss:.6f} by the harness, "
        f"{total['loss']:.6f} by the trainer; bits per byte {results['bits_per_byte,none']:.6f}, "
        f"{total['bits_per_byte']:.6f}"
    )
    assert loss == pytest.approx(total["loss"], abs=1e-4)
    assert results["bits_per_byte,none"] == pytest.approx(total["bits_per_byte"], abs=1e-4)
