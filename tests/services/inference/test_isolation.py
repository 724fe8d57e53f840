"""Over HTTP, a request gives the same tokens, independent of other requests and of how it is sent."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer
from tests.services.conftest import Process

pytestmark = pytest.mark.extended

CONTEXT, MAX_TOKENS = 128, 40
TIGHT_CACHE = 64_000  # bytes: 10 blocks of the tiny model, where one full context takes 8
# The second prompt begins as the first one does; all are longer than a block, so that they can be found again.
TEXTS = (
    "Once upon a time there was a little fox. The fox had a red ball called Zed",
    "Once upon a time there was a little fox. The fox had a red ball and no friend",
    "yxwvutsrqponm zzz qqq 0123456789",
)
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.95, "seed": 7},
    {"temperature": 1.3, "top_k": 50, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "seed": 2**62, "n": 2},
)
REQUESTS = [
    {"prompt": text, "max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 0, **way}
    for text in TEXTS
    for way in WAYS
]
Answer = list[tuple[list[int], list[float]]]  # for each choice its tokens and their log-probabilities


@pytest.fixture(scope="module")
def servers(model_dir: Path) -> Iterator[tuple[str, str]]:
    """One with room for all, found prefixes included, and one whose cache holds little more than one full context."""
    started = [
        Process("-m", "services.inference", model_dir=model_dir, threads=1, prefill_tokens=24, **settings)
        for settings in (
            {"max_batch": 34, "kv_cache_bytes": "64MiB"},
            {"max_batch": 6, "kv_cache_bytes": TIGHT_CACHE},
        )
    ]
    for server in started:
        server.wait_ready()
        assert server.popen.stdout is not None
        threading.Thread(target=server.popen.stdout.read, daemon=True).start()  # a full pipe would stop the service
    yield started[0].url, started[1].url
    for server in started:
        server.terminate()
        assert server.popen.wait(240) == 0
        server.popen.communicate()


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[Answer, int]:
    """The answer, and how many tokens of the prompt were found in the cache."""
    response = await client.post(f"{url}/generate", json=body)
    assert response.status_code == 200, response.text
    content = response.json()
    return [_of_choice(choice) for choice in content["choices"]], content["usage"]["prompt_tokens_details"][
        "cached_tokens"
    ]


async def stream(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Answer:
    """The same answer, put together from a stream."""
    answer: Answer = [([], []) for _ in range(body.get("n", 1))]
    async with client.stream("POST", f"{url}/generate", json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    for whole, part in zip(answer[choice["index"]], _of_choice(choice), strict=True):
                        whole.extend(part)  # type: ignore[arg-type]
    return answer


async def leave(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
    """Take the first part of a stream and go."""
    async with client.stream("POST", f"{url}/generate", json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        await anext(response.aiter_lines())


def _of_choice(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    return choice["tokens"], [entry["logprob"] for entry in choice["logprobs"] or ()]


def neighbor(rng: random.Random, vocab_size: int) -> dict[str, Any]:
    prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 60))]
    return {
        "prompt": prompt,
        "max_tokens": CONTEXT - len(prompt),
        "temperature": rng.choice([0, 0.8, 1.5]),
        "top_p": rng.choice([0.5, 1]),
        "seed": rng.randrange(2**63),
        "logit_bias": {str(rng.randrange(vocab_size)): rng.choice([-100, 5])},
    }


async def metric(client: httpx.AsyncClient, url: str, name: str) -> float:
    lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


async def in_all_company(servers: tuple[str, str], tokenizer: Tokenizer) -> None:
    roomy, tight = servers
    as_ids = [{**body, "prompt": tokenizer.encode(body["prompt"])} for body in REQUESTS]
    async with httpx.AsyncClient(timeout=240, limits=httpx.Limits(max_connections=None)) as client:
        # On a new server, one after the other; each text's first request finds nothing of its own in the cache.
        alone = [(await ask(client, tight, body)) for body in as_ids]
        expected = [answer for answer, _ in alone]
        assert alone[0][1] == 0
        assert len({str(answer) for answer in expected}) == len(REQUESTS)
        assert all(len(tokens) == MAX_TOKENS for answer in expected for tokens, _ in answer)

        stopped = False

        async def neighbors(seed: int) -> None:
            rng = random.Random(seed)
            while not stopped:
                body = neighbor(rng, tokenizer.vocab_size)
                await (leave if rng.random() < 0.2 else ask)(client, roomy, body)

        company = [asyncio.create_task(neighbors(seed)) for seed in range(31)]
        while await metric(client, roomy, "ownlm_running_rows") < 25:
            await asyncio.sleep(0.01)
        late = [await ask(client, roomy, body) for body in as_ids]
        again, streamed = await asyncio.gather(
            asyncio.gather(*[ask(client, roomy, body) for body in REQUESTS]),
            asyncio.gather(*[stream(client, roomy, body) for body in REQUESTS]),
        )
        stopped = True
        await asyncio.gather(*company)
        assert late[0][1] == 0, "joining late, with nothing in the cache"
        assert [answer for answer, _ in late] == expected
        assert min(cached for _, cached in again) > 0, "with a prefix hit, as text"
        assert [answer for answer, _ in again] == expected
        assert streamed == expected

        preemptions = 0.0
        while not preemptions:  # as long as too few run at the same time
            crowded = await asyncio.gather(*[ask(client, tight, body) for body in as_ids])
            assert [answer for answer, _ in crowded] == expected
            preemptions = await metric(client, tight, "ownlm_engine_preemptions_total")


def test_a_request_is_the_same_alone_and_in_company(servers: tuple[str, str], tokenizer: Tokenizer) -> None:
    """B70, B71: ids or text, streamed or not, n choices, among 31 that come and go, found again, and preempted."""
    asyncio.run(in_all_company(servers, tokenizer))


def test_a_reused_slot_keeps_nothing(servers: tuple[str, str], tokenizer: Tokenizer) -> None:
    """B72: after clients that left midway, prompts of others have no influence."""

    async def run() -> None:
        rng = random.Random(0)
        async with httpx.AsyncClient(timeout=240) as client:
            expected, _ = await ask(client, servers[0], REQUESTS[1])
            for _ in range(10):
                await leave(client, servers[1], neighbor(rng, tokenizer.vocab_size))
                assert (await ask(client, servers[1], REQUESTS[1]))[0] == expected

    asyncio.run(run())


def test_both_routes_give_the_same(servers: tuple[str, str], tokenizer: Tokenizer) -> None:
    """The same body at /v1/completions: the text is that of the tokens, of a list of prompts too."""
    with httpx.Client(timeout=240) as client:
        for way in WAYS:
            body = {"max_tokens": MAX_TOKENS, "ignore_eos": True, **way}
            completed = client.post(f"{servers[0]}/v1/completions", json={"prompt": list(TEXTS), **body}).json()
            generated = [
                choice["text"]
                for text in TEXTS
                for choice in client.post(f"{servers[0]}/generate", json={"prompt": text, **body}).json()["choices"]
            ]
            assert [choice["text"] for choice in completed["choices"]] == generated
