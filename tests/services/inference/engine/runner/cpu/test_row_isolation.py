"""A sequence gives the same tokens and log-probabilities, to the last bit, whatever runs beside it."""

import random
from collections import defaultdict

import pytest

from services.inference.engine.runner.cpu.panels import KV_KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import FailEvent, PromptEvent, SequenceRequest, TokenEvent
from shared.lm import SamplingParams, Transformer
from tests.services.inference.engine.runner.cpu.conftest import CONTEXT_LENGTH, MakeRunner

Answers = dict[int, list[object]]


def make_requests(vocab_size: int, rng: random.Random) -> list[SequenceRequest]:
    """Long and short prompts, of which half begin alike; greedy and seeded; some want their prompt scored."""
    shared = [rng.randrange(vocab_size) for _ in range(CONTEXT_LENGTH)]
    requests = []
    for seed in range(10):
        length = rng.randrange(33 if seed % 2 else 1, CONTEXT_LENGTH // 2)
        own = [rng.randrange(vocab_size) for _ in range(length)]
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.8, 1.5]),
            top_p=rng.choice([0.9, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            seed=seed,
        )
        requests.append(
            SequenceRequest(
                prompt_ids=tuple(shared[:length] if seed % 2 else own),
                params=params,
                max_tokens=30,
                stop_ids=frozenset(),
                num_logprobs=2,
                num_prompt_logprobs=rng.choice([None, None, 1]),
            )
        )
    return requests


class FewBlocks:
    """A runner that reports fewer blocks than it has: eight sequences at their ends need three times as many."""

    num_blocks = 16
    block_memory = None

    def __init__(self, runner: CpuRunner) -> None:
        self.num_slots, self.max_step_tokens = runner.num_slots, runner.max_step_tokens
        self.open_slot, self.close_slot, self.copy_block = runner.open_slot, runner.close_slot, runner.copy_block
        self.run = runner.run


def run(core: EngineCore, arrivals: dict[int, list[tuple[int, SequenceRequest]]], leavers: dict[int, int]) -> Answers:
    """Submit and cancel at given steps, and collect what each request's sequence reports, without its cache hits."""
    answers: Answers = defaultdict(list)
    for step in range(10_000):
        for request_id, request in arrivals.pop(step, []):
            core.submit(request_id, [request])
        if step in leavers:
            core.cancel(leavers[step])
        if not core.has_work and not arrivals:
            return answers
        for event in core.step() if core.has_work else []:
            assert not isinstance(event, FailEvent)
            if isinstance(event, TokenEvent):
                answers[event.request_id].append(event)
            elif isinstance(event, PromptEvent):
                answers[event.request_id].append(event.logprobs)
    raise AssertionError("the core does not come to an end")


def alone(runner: CpuRunner, requests: list[SequenceRequest]) -> Answers:
    answers: Answers = {}
    for request_id, request in enumerate(requests):
        answers |= run(EngineCore(runner, prefill_tokens=56), {0: [(request_id, request)]}, {})
    return answers


@pytest.mark.parametrize(
    ("name", "num_threads", "prefill_tokens", "kv_dtype"),
    [
        ("grouped heads", 1, 56, "float32"),
        ("llama3", 2, 56, "float16"),
        ("qwen3", 1, 9, "float32"),
        ("qwen3", 2, 56, "bfloat16"),
    ],
)
def test_neighbors_change_nothing(
    name: str,
    num_threads: int,
    prefill_tokens: int,
    kv_dtype: str,
    models: dict[str, Transformer],
    make_runner: MakeRunner,
) -> None:
    """B70, B71, B72: joining late, in used slots and blocks, cut, found in the cache, preempted, others leaving."""
    model, rng = models[name], random.Random(3)
    requests, others = (make_requests(model.config.vocab_size, rng) for _ in range(2))
    expected = alone(make_runner(model, kv_kind=KV_KINDS[kv_dtype]), requests)
    runner = FewBlocks(make_runner(model, num_threads, kv_kind=KV_KINDS[kv_dtype]))
    core = EngineCore(runner, prefill_tokens=prefill_tokens)
    for _ in range(2):  # the second time with blocks of the first in the cache
        arrivals = defaultdict(list)
        for request_id, (request, other) in enumerate(zip(requests, others, strict=True)):
            arrivals[rng.randrange(12)].append((request_id, request))
            arrivals[rng.randrange(12)].append((100 + request_id, other))
        leavers = {rng.randrange(2, 60): 100 + rng.randrange(len(requests)) for _ in range(5)}
        answers = run(core, arrivals, leavers)
        assert {request_id: answer for request_id, answer in answers.items() if request_id < 100} == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_tokens_hit > 0
    assert (stats.num_running, stats.kv_blocks_used) == (0, 0)
