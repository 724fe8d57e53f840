"""Drives an `EngineCore` as its process does, and checks what must hold after every call."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from structlog.testing import capture_logs

from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.scheduling.sequence import Status
from services.inference.engine.types import BLOCK_SIZE, FailEvent, PromptEvent, SequenceRequest, StartEvent, TokenEvent
from shared.lm import SamplingParams
from tests.services.inference.engine.fake_runner import FakeRunner, score


def request(
    prompt: int | list[int],
    max_tokens: int = 5,
    *,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    scores: int | None = None,
) -> SequenceRequest:
    """A sequence; a number stands for a prompt of so many tokens."""
    ids = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    return SequenceRequest(ids, SamplingParams(seed=seed), max_tokens, frozenset(stop_ids), num_prompt_logprobs=scores)


@dataclass
class Answer:
    """What came of a sequence."""

    started: bool = False
    prompt: PromptEvent | None = None
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    failure: str | None = None


class Driver:
    """A core, the answers of its sequences by request and index, and its invariants."""

    def __init__(
        self, runner: FakeRunner, prefill_tokens: int = 32, min_prefill_tokens: int = 16, **options: Any
    ) -> None:
        self.runner = runner
        self.core = EngineCore(runner, prefill_tokens=prefill_tokens, min_prefill_tokens=min_prefill_tokens, **options)
        self.answers: dict[tuple[int, int], Answer] = {}
        self.log: list[Any] = []

    def submit(self, request_id: int, *requests: SequenceRequest) -> None:
        self.core.submit(request_id, requests)
        self.answers |= {(request_id, index): Answer() for index in range(len(requests))}

    def step(self) -> None:
        with capture_logs() as lines:  # printing a trace takes longer than a hundred steps
            events = self.core.step()
        self.log += lines
        for event in events:
            answer = self.answers[event.request_id, event.sequence_index]
            assert answer.finish_reason is None, "an event after the last one"
            assert answer.failure is None, "an event after the last one"
            match event:
                case StartEvent():
                    assert not answer.started
                    answer.started = True
                case PromptEvent():
                    assert answer.started
                    assert answer.prompt is None
                    answer.prompt, answer.finish_reason = event, event.finish_reason
                case TokenEvent():
                    assert answer.prompt is not None
                    answer.tokens.append(event.token)
                    answer.finish_reason = event.finish_reason
                case FailEvent():
                    answer.failure = event.message
        self.check()

    def run(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the core does not come to an end")

    def tokens(self, request_id: int) -> list[list[int]]:
        return [answer.tokens for (of, _), answer in self.answers.items() if of == request_id]

    def check(self) -> None:
        """Every block and slot is accounted for, and nothing is left of sequences that have finished."""
        scheduler, pool = self.core._scheduler, self.core._scheduler.pool
        sequences = list(self.core._sequences.values())
        running = list(scheduler.running)
        assert {sequence.slot for sequence in running} == set(self.runner.slots)
        assert sorted([*self.runner.slots, *scheduler.free_slots]) == list(range(self.runner.num_slots))
        assert running == sorted(running, key=lambda sequence: sequence.admission)
        assert {one for one in sequences if one.status is Status.RUNNING} == set(running)
        assert {one.status for one in sequences if one not in scheduler.running} <= {Status.WAITING}
        assert len(scheduler.waiting) + len(running) == len(sequences)

        held = Counter(block for sequence in sequences for block in sequence.blocks)
        assert [held[block] for block in range(pool.num_blocks)] == pool._references
        assert pool.num_ready <= pool.num_blocks
        groups = [list(held), pool._free, list(pool._cached)]
        assert sorted(block for group in groups for block in group) == list(range(pool.num_ready))
        assert set(pool._cached) <= set(pool._digests)
        assert {digest: block for block, digest in pool._digests.items()} == pool._blocks

        for one in sequences:
            leader = one.leader or one
            is_running = one.status is Status.RUNNING
            assert all(follower.leader is one for follower in one.followers)
            assert (one in leader.followers) == (one.leader is not None)
            assert is_running or not (one.blocks or one.followers or one.leader or one.num_computed)
            if is_running and one.leader is None:
                assert len(one.blocks) * BLOCK_SIZE >= one.num_tokens - bool(one.output)
        for key, leader in scheduler._leaders.items():
            assert leader.prefill_key == key
            assert leader.status is Status.RUNNING
            assert not leader.output

    def check_empty(self) -> None:
        """Nothing is left but blocks that may be found again."""
        self.check()
        stats = self.core.stats()
        assert (stats.num_waiting, stats.num_running, stats.kv_blocks_used) == (0, 0, 0)
        assert not self.core._scheduler._leaders
        assert not self.core.has_work


def expected_scores(of: SequenceRequest) -> tuple[object, ...] | None:
    if of.num_prompt_logprobs is None:
        return None
    ids = of.prompt_ids
    return tuple(score(ids[:index], ids[index], of.num_prompt_logprobs) for index in range(1, len(ids)))
