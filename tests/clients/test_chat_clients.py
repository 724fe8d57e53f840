"""LangChain, litellm and lm-evaluation-harness hold conversations with `/v1/chat/completions`."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who lost the ball?"}]

LANGCHAIN = """
import asyncio, json, sys
from langchain_openai import ChatOpenAI

url, messages = sys.argv[1], json.loads(sys.argv[2])
model = ChatOpenAI(base_url=url, api_key="none", model="demo", max_retries=0, max_tokens=9, temperature=0)
said = [(message["role"], message["content"]) for message in messages]

async def collect():
    return "".join([part.content async for part in model.astream(said)])

print(json.dumps([
    model.invoke(said).content,
    "".join(part.content for part in model.stream(said)),
    asyncio.run(collect()),
]))
"""
LITELLM = """
import asyncio, json, sys
import litellm

url, messages = sys.argv[1], json.loads(sys.argv[2])
results = []
for provider in ("openai", "hosted_vllm"):
    request = dict(model=provider + "/demo", api_base=url, api_key="none", messages=messages, max_tokens=9,
                   temperature=0, num_retries=0)

    async def collect():
        parts = await litellm.acompletion(stream=True, **request)
        return "".join([part.choices[0].delta.content or "" async for part in parts])

    results.append(litellm.completion(**request).choices[0].message.content)
    parts = litellm.completion(stream=True, **request)
    results.append("".join(part.choices[0].delta.content or "" for part in parts))
    results.append(asyncio.run(collect()))
print(json.dumps(results))
"""
TASK = """
task: questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {questions}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["@@"], max_gen_toks: 9, temperature: 0, do_sample: false}}
metric_list: [{{metric: exact_match, regexes_to_ignore: ["\\\\s"]}}]
metadata: {{version: 1.0}}
"""


@pytest.fixture(scope="module")
def chat_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(model_dir, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def url(process: Callable[..., Any], chat_dir: Path) -> str:
    service = process("-m", "services.inference", model_dir=chat_dir, model_name="demo", threads=1).wait_ready()
    threading.Thread(target=service.popen.stdout.read, daemon=True).start()
    return f"{service.url}/v1"


def answer(url: str, messages: list[dict[str, str]]) -> str:
    body = {"messages": messages, "max_tokens": 9, "temperature": 0}
    response = httpx.post(f"{url}/chat/completions", json=body, timeout=60)
    text: str = response.json()["choices"][0]["message"]["content"]
    assert text
    return text


@pytest.mark.parametrize(("package", "program"), [("langchain_openai", LANGCHAIN), ("litellm", LITELLM)])
def test_a_conversation_in_every_way_that_the_client_has(url: str, package: str, program: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: ownlm[clients]")
    done = subprocess.run(
        [sys.executable, "-c", program, url, json.dumps(MESSAGES)],
        check=False, capture_output=True, text=True, timeout=240,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) >= 3
    assert set(results) == {answer(url, MESSAGES)}


@pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm-eval is not installed: ownlm[clients]")
def test_the_harness_scores_answers(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-evaluation-harness' `local-chat-completions`: the right answers are ours, and one is wrong."""
    questions = ["Who lost the ball?", "Where is Anna?", "What is red?"]
    answers = [answer(url, [{"role": "user", "content": question}]) for question in questions[:2]] + ["no"]
    lines = [json.dumps({"question": q, "answer": a.strip()}) for q, a in zip(questions, answers, strict=True)]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    (tmp_path / "questions.yaml").write_text(TASK.format(questions=tmp_path / "questions.jsonl"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    done = subprocess.run(
        [
            sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--tasks", "questions",
            "--include_path", str(tmp_path), "--apply_chat_template", "--output_path", str(tmp_path / "results"),
            "--model_args", f"model=demo,base_url={url}/chat/completions,num_concurrent=2",
        ],
        check=False, capture_output=True, text=True, timeout=400,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]["questions"]
    assert results["exact_match,none"] == pytest.approx(2 / 3)
