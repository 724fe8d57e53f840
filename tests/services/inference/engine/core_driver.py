"""Drives an `EngineCore` as its process does, and checks what must hold after every call."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from structlog.testing import capture_logs

from services.inference.engine.runner.protocol import BLOCK_SIZE
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import FailEvent, PromptEvent, RowRequest, StartEvent, TokenEvent
from shared.lm import SamplingParams
from tests.services.inference.engine.fake_runner import FakeRunner, score


def request(
    prompt: int | list[int],
    max_tokens: int = 5,
    *,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    scores: int | None = None,
) -> RowRequest:
    """A row; a number stands for a prompt of so many tokens."""
    ids = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    return RowRequest(ids, SamplingParams(seed=seed), max_tokens, frozenset(stop_ids), num_prompt_logprobs=scores)


@dataclass
class Answer:
    """What came of a row."""

    started: bool = False
    prompt: PromptEvent | None = None
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    failure: str | None = None


class Driver:
    """A core, the answers of its rows by job and row, and its invariants."""

    def __init__(self, runner: FakeRunner, prefill_tokens: int = 32, min_prefill_tokens: int = 16) -> None:
        self.runner = runner
        self.core = EngineCore(runner, prefill_tokens=prefill_tokens, min_prefill_tokens=min_prefill_tokens)
        self.answers: dict[tuple[int, int], Answer] = {}
        self.log: list[Any] = []

    def submit(self, job_id: int, *requests: RowRequest) -> None:
        self.core.submit(job_id, requests)
        self.answers |= {(job_id, index): Answer() for index in range(len(requests))}

    def step(self) -> None:
        with capture_logs() as lines:  # printing a trace takes longer than a hundred steps
            events = self.core.step()
        self.log += lines
        for job_id, event in events:
            answer = self.answers[job_id, event.row]
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

    def tokens(self, job_id: int) -> list[list[int]]:
        return [answer.tokens for (job, _), answer in self.answers.items() if job == job_id]

    def check(self) -> None:
        """Every block and place is accounted for, and nothing is left of rows that are gone."""
        scheduler, pool = self.core._scheduler, self.core._scheduler.pool
        rows = [row for job in self.core._rows.values() for row in job.values()]
        running = list(scheduler.running)
        assert {row.place for row in running} == set(self.runner.rows)
        assert sorted([*self.runner.rows, *scheduler._free_places]) == list(range(self.runner.max_rows))
        assert len(scheduler.waiting) + len(running) == len(rows)
        assert [row.age for row in running] == sorted(row.age for row in running)

        held = Counter(block for row in rows for block in row.blocks)
        assert [held[block] for block in range(pool.num_blocks)] == pool._references
        groups = [list(held), pool._free, list(pool._idle)]
        assert sorted(block for group in groups for block in group) == list(range(pool.num_blocks))
        assert set(pool._idle) <= set(pool._digests)
        assert {digest: block for block, digest in pool._digests.items()} == pool._blocks

        for row in rows:
            leader = row.leader or row
            assert all(follower.leader is row for follower in row.followers)
            assert (row in leader.followers) == (row.leader is not None)
            assert row.place >= 0 or not (row.blocks or row.followers or row.leader or row.num_computed)
            if row.place >= 0 and row.leader is None:
                assert len(row.blocks) * BLOCK_SIZE >= row.num_tokens - bool(row.output)
        for key, leader in scheduler._leaders.items():
            assert leader.prefill_key == key
            assert leader.place >= 0
            assert not leader.output

    def check_empty(self) -> None:
        """Nothing is left but blocks that may be found again."""
        self.check()
        stats = self.core.stats()
        assert (stats.waiting_rows, stats.running_rows, stats.kv_blocks_used) == (0, 0, 0)
        assert not self.core._scheduler._leaders
        assert not self.core.has_work


def expected_scores(row: RowRequest) -> tuple[object, ...] | None:
    if row.num_prompt_logprobs is None:
        return None
    ids = row.prompt_ids
    return tuple(score(ids[:index], ids[index], row.num_prompt_logprobs) for index in range(1, len(ids)))
