"""The `openai` package, as people use it, against a real server."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

SCRIPTS = {"Hello": [" a", "é", "\n\ndata: x", "\u2028", "HI", "<|endoftext|>"], "broken": ["H", "H", -1]}
TEXT = " aé\n\ndata: x\u2028HI"


@pytest.fixture
def url(scripted: Any, serve: Callable[..., str]) -> str:
    app, _ = scripted(SCRIPTS, model_name="demo")
    return f"{serve(app)}/v1"


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=240) as client:
        yield client


def test_whole_answers(client: OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Hello", max_tokens=20, seed=1, temperature=0.5, top_p=0.9)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model == "demo"
    several = client.completions.create(
        model="demo", prompt=["Hello", "other"], n=2, echo=True, max_tokens=3, stop=["Z"], logit_bias={"65": -1}
    )
    assert [choice.text for choice in several.choices] == ["Hello aé\n\ndata: x"] * 2 + ["otherxxx"] * 2
    vllms = client.completions.create(
        model="demo", prompt="other", max_tokens=4, extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True}
    )
    assert vllms.choices[0].text == "xxxx"


def test_streams(client: OpenAI) -> None:
    stream = client.completions.create(
        model="demo", prompt="Hello", max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_many_streams_at_once(url: str) -> None:
    async def read(client: AsyncOpenAI) -> str:
        stream = await client.completions.create(model="demo", prompt="Hello", max_tokens=20, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=240) as client:
            return await asyncio.gather(*[read(client) for _ in range(16)])

    assert asyncio.run(run()) == [TEXT] * 16


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "ownlm"


def test_errors_are_the_packages_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-4' not found") as missing:
        client.completions.create(model="gpt-4", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="suffix: not supported"):
        client.completions.create(model="demo", prompt="a", suffix="b")
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        client.completions.create(model="demo", prompt="a", temperature=-1)


@pytest.mark.case("D25")
def test_an_answer_that_fails_midway_is_never_taken_as_complete(client: OpenAI, url: str) -> None:
    received = []

    async def read() -> None:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=240) as client:
            stream = await client.completions.create(model="demo", prompt="broken", stream=True)
            async for chunk in stream:
                received.append(chunk.choices[0])  # noqa: PERF401 - it ends with an error

    stream = client.completions.create(model="demo", prompt="broken", stream=True)
    for attempt in (lambda: received.extend(chunk.choices[0] for chunk in stream), lambda: asyncio.run(read())):
        received.clear()
        with pytest.raises(openai.APIError, match="no distribution") as failed:
            attempt()
        assert failed.value.code == "generation_failed"
        assert [(choice.text, choice.finish_reason) for choice in received] == [("H", None)] * 2
    with pytest.raises(openai.InternalServerError, match="no distribution"):
        client.completions.create(model="demo", prompt="broken")


def test_keys_timeouts_and_a_full_queue(scripted: Any, serve: Callable[..., str]) -> None:
    app, runner = scripted(SCRIPTS, max_batch=1, max_queue=0, max_choices=1, api_keys="secret")
    runner.seconds = 0.02
    url = serve(app)
    with OpenAI(base_url=f"{url}/v1", api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model="scripted", prompt="a")
    with OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0, timeout=240) as client:
        stream = client.completions.create(model="scripted", prompt="other", max_tokens=5000, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError) as full:
            client.completions.create(model="scripted", prompt="a")
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
        stream.close()  # a client that leaves gives its place back, and so does one that waits no longer
        patient = client.with_options(max_retries=10)
        assert patient.completions.create(model="scripted", prompt="Hello").choices[0].text == TEXT
        runner.gate.clear()
        with pytest.raises(openai.APITimeoutError):
            patient.with_options(max_retries=0, timeout=0.5).completions.create(model="scripted", prompt="Hello")
        runner.gate.set()
        assert patient.completions.create(model="scripted", prompt="Hello").choices[0].text == TEXT
