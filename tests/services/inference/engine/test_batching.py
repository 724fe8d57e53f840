"""The batching loop on a real model: rows do not know of each other."""

import asyncio
import math
import random
from pathlib import Path

import pytest
import torch

from services.inference.engine import (
    BatchingEngine,
    EngineError,
    Job,
    ModelRunner,
    RowRequest,
    TokenEvent,
)
from shared.lm import ModelFolder, SamplingParams, generate, load_model_folder

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def folder(model_dir: Path) -> ModelFolder:
    return load_model_folder(model_dir)


def engine_for(folder: ModelFolder, *, num_slots: int = 4, prefill_tokens: int = 8) -> BatchingEngine:
    runner = ModelRunner(folder.model, num_slots=num_slots, max_length=128, valid_tokens=folder.valid_tokens)
    return BatchingEngine(runner, max_queue=100, prefill_tokens=prefill_tokens)


def row(prompt: list[int], max_tokens: int = 16, params: SamplingParams = GREEDY) -> RowRequest:
    return RowRequest(tuple(prompt), params, max_tokens, frozenset())


async def tokens_of(job: Job) -> list[int]:
    return [event.token async for events in job for event in events if isinstance(event, TokenEvent)]


def alone(folder: ModelFolder, request: RowRequest) -> list[int]:
    ids, params = list(request.prompt_ids), request.params
    return list(generate(folder.model, ids, params, max_tokens=request.max_tokens, valid_tokens=folder.valid_tokens))


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.choice([1, 7, 30, 60]))] for _ in range(count)]


def test_rows_that_join_at_any_step_give_what_they_give_alone(folder: ModelFolder) -> None:  # B71
    greedy = [row(prompt) for prompt in prompts(8, seed=1)]
    drawn = [
        row(prompt, params=SamplingParams(temperature=0.8, top_p=0.9, seed=index, repetition_penalty=1.2))
        for index, prompt in enumerate(prompts(8, seed=2))
    ]

    async def run(order: list[RowRequest]) -> list[list[int]]:
        engine = engine_for(folder)
        try:
            tasks = []
            for index, request in enumerate(order):
                tasks.append(asyncio.create_task(tokens_of(engine.submit([request]))))
                await asyncio.sleep(0.002 * (index % 3))
            return list(await asyncio.gather(*tasks))
        finally:
            engine.close()

    requests = greedy + drawn
    for seed in range(3):
        order = random.Random(seed).sample(requests, len(requests))
        assert asyncio.run(run(order)) == [alone(folder, request) for request in order]


def test_a_slot_that_was_used_before_is_as_good_as_new(folder: ModelFolder) -> None:  # B72
    long, short = row(prompts(1, seed=3)[0] * 2, max_tokens=60), row([65, 66], max_tokens=8)
    expected = alone(folder, short)

    async def run() -> None:
        engine = engine_for(folder, num_slots=1)
        rng = random.Random(0)
        for _ in range(20):
            job = engine.submit([long])
            for _ in range(rng.randrange(5)):
                await anext(job)
            job.cancel()
            assert await tokens_of(engine.submit([short])) == expected
        engine.close()

    asyncio.run(run())


def test_a_long_prompt_delays_running_rows_by_one_chunk_at_a_time(folder: ModelFolder) -> None:  # B73
    calls: list[tuple[int, int]] = []

    class Recorder(ModelRunner):
        def forward(self, slots: list[int], tokens: list[list[int]], positions: list[int]) -> torch.Tensor:
            calls.append((len(slots), len(tokens[0])))
            return super().forward(slots, tokens, positions)

    async def run() -> None:
        runner = Recorder(folder.model, num_slots=4, max_length=128, valid_tokens=folder.valid_tokens)
        engine = BatchingEngine(runner, max_queue=0, prefill_tokens=8)
        running = [engine.submit([row([65], max_tokens=100)]) for _ in range(3)]
        for job in running:
            await anext(job)
        calls.clear()
        await tokens_of(engine.submit([row([66] * 100, max_tokens=1)]))
        engine.close()

    asyncio.run(run())
    prompt_chunks = [index for index, (_, num_tokens) in enumerate(calls) if num_tokens > 1]
    assert sum(calls[index][1] for index in prompt_chunks) == 100
    assert max(calls[index][1] for index in prompt_chunks) <= 8
    for index in prompt_chunks[:-1]:
        assert calls[index + 1] == (3, 1), "every chunk is followed by a token of all running rows"


def test_a_model_of_nan_fails_its_rows_and_not_the_engine(folder: ModelFolder) -> None:  # B48
    sick = load_model_folder(folder.path)
    with torch.no_grad():
        sick.model.model.embed_tokens.weight[65] = math.nan

    async def run() -> tuple[list[int], str]:
        engine = engine_for(sick)
        healthy = asyncio.create_task(tokens_of(engine.submit([row([66, 67])])))
        with pytest.raises(EngineError) as caught:
            await tokens_of(engine.submit([row([65, 66])]))
        tokens = await healthy
        assert engine.fault is None
        engine.close()
        return tokens, str(caught.value)

    tokens, message = asyncio.run(run())
    assert tokens == alone(folder, row([66, 67]))
    assert "not finite" in message


def test_cancelled_rows_leave_nothing_behind(folder: ModelFolder) -> None:  # B67
    async def run() -> None:
        engine = engine_for(folder)
        for _ in range(20):
            jobs = [engine.submit([row([65], max_tokens=100), row([66], max_tokens=100)]) for _ in range(5)]
            for job in jobs:
                await anext(job)
                job.cancel()
        while engine.stats()[:2] != (0, 0):
            await asyncio.sleep(0.01)
        assert await tokens_of(engine.submit([row([65])])) == alone(folder, row([65]))
        engine.close()

    asyncio.run(run())
