"""LangChain and litellm raise where a streamed answer fails midway, and never take its text as complete."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.case("D25")]

SCRIPTS = {"fine": ["H", "i", "<|endoftext|>"], "broken": ["H", "i", -1]}

# Each program asks for both prompts in every way that the package has, and prints what came of it.
PROGRAM = """
import asyncio, json, sys
url = sys.argv[1]
{ways}
results = []
for way in ways:
    for prompt in ("fine", "broken"):
        try:
            results.append([prompt, way(prompt)])
        except Exception as error:
            results.append([prompt, f"{{type(error).__name__}}: {{error}}"])
print(json.dumps(results))
"""
LANGCHAIN = """
from langchain_openai import OpenAI

def model(**options):
    return OpenAI(base_url=url, api_key="none", model="demo", max_retries=0, max_tokens=9, **options)

async def collect(prompt):
    return "".join([part async for part in model().astream(prompt)])

ways = [
    lambda prompt: "".join(model().stream(prompt)),
    lambda prompt: asyncio.run(collect(prompt)),
    lambda prompt: model(streaming=True).invoke(prompt),
    lambda prompt: model().invoke(prompt),
]
"""
LITELLM = """
import litellm

def ways_of(provider):
    request = dict(model=provider + "/demo", api_base=url, api_key="none", max_tokens=9, num_retries=0)

    def stream(prompt):
        parts = litellm.text_completion(prompt=prompt, stream=True, **request)
        return "".join(part.choices[0].text or "" for part in parts)

    async def collect(prompt):
        parts = await litellm.atext_completion(prompt=prompt, stream=True, **request)
        return "".join([part.choices[0].text or "" async for part in parts])

    def whole(prompt):
        return litellm.text_completion(prompt=prompt, **request).choices[0].text

    return [stream, lambda prompt: asyncio.run(collect(prompt)), whole]

ways = [way for provider in ("text-completion-openai", "openai", "hosted_vllm") for way in ways_of(provider)]
"""


@pytest.mark.parametrize(
    ("package", "ways", "count", "error"),
    [
        ("langchain_openai", LANGCHAIN, 4, "APIError|InternalServerError"),
        ("litellm", LITELLM, 9, "InternalServerError"),
    ],
)
def test_what_fails_midway_raises(
    scripted: Any, serve: Callable[..., str], package: str, ways: str, count: int, error: str
) -> None:
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed: ownlm[clients]")
    app, _ = scripted(SCRIPTS, model_name="demo")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ways=ways), f"{serve(app)}/v1"],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it asks the internet for prices
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert [text for prompt, text in results if prompt == "fine"] == ["Hi"] * count
    for text in [text for prompt, text in results if prompt == "broken"]:
        assert text.partition(":")[0] in error.split("|"), text
        assert "no distribution" in text
