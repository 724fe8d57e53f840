"""Who gets a slot and a share of the steps, and how long others wait for it."""

from collections.abc import Callable

import pytest

from tests.services.inference.engine.core_driver import Answer, Driver, request
from tests.services.inference.engine.fake_runner import FakeRunner, reference

PREFILL = 64


def wide(*, prefill_tokens: int = PREFILL, min_prefill_tokens: int = PREFILL, **sizes: int) -> Driver:
    runner = FakeRunner(**{"num_blocks": 2000, "num_slots": 8, "max_step_tokens": 72, **sizes})
    return Driver(runner, prefill_tokens, min_prefill_tokens)


def order_of(driver: Driver, reached: Callable[[Answer], object]) -> list[int]:
    """Requests in the order in which the first of their sequences gets somewhere."""
    order: list[int] = []
    while driver.core.has_work:
        driver.step()
        order += [
            request_id
            for (request_id, _), answer in driver.answers.items()
            if reached(answer) and request_id not in order
        ]
    return order


def first_tokens(driver: Driver) -> list[int]:
    return order_of(driver, lambda answer: answer.tokens)


def starts(driver: Driver) -> list[tuple[int, int]]:
    """Requests and sequences in the order in which they were admitted."""
    order: list[tuple[int, int]] = []
    while driver.core.has_work:
        driver.step()
        order += [key for key, answer in driver.answers.items() if answer.started and key not in order]
    return order


@pytest.mark.parametrize(("min_prefill_tokens", "chunk"), [(16, 16), (64, 64)])
def test_a_long_prompt_delays_running_streams_by_a_chunk_a_step(min_prefill_tokens: int, chunk: int) -> None:
    """B73."""
    driver = wide(min_prefill_tokens=min_prefill_tokens)
    for request_id in range(4):
        driver.submit(request_id, request(3, 200, seed=request_id))
    for _ in range(3):
        driver.step()
    driver.submit(4, request(1000, 3))
    before = [len(driver.tokens(request_id)[0]) for request_id in range(4)]
    steps = 0
    while driver.answers[4, 0].prompt is None:
        driver.step()
        steps += 1
        assert [len(driver.tokens(request_id)[0]) for request_id in range(4)] == [count + steps for count in before]
        assert driver.runner.steps[-1][:4] == [1] * 4
        assert sum(driver.runner.steps[-1][4:]) <= chunk
    assert steps == -(-1000 // chunk)
    driver.run()
    assert driver.tokens(4) == [reference(request(1000, 3))]


@pytest.mark.parametrize(("tokens", "chunk"), [(12, 12), (1, 8), (1000, PREFILL)])
@pytest.mark.parametrize(("num_streams", "long"), [(1, [0, 200, 400]), (4, [])])
def test_prompts_get_as_many_tokens_as_there_is_time_for_and_rarely_more(
    num_streams: int, long: list[int], tokens: int, chunk: int
) -> None:
    """A stream waits for a long step once in 200 tokens at most, and only for as many prompts as there are streams.

    All other steps are as long as time allows.
    """
    asked: list[int] = []

    def tokens_beside(num_decoding: int) -> int:
        asked.append(num_decoding)
        return tokens

    driver = Driver(FakeRunner(num_blocks=2000, num_slots=8, max_step_tokens=72), PREFILL, tokens_beside=tokens_beside)
    for request_id in range(num_streams):
        driver.submit(request_id, request(3, 600, seed=request_id))
    for _ in range(3):
        driver.step()
    driver.submit(num_streams, request(5000, 3))
    chunks = []
    while driver.answers[num_streams, 0].prompt is None and driver.answers[0, 0].finish_reason is None:
        driver.step()
        assert driver.runner.steps[-1][:num_streams] == [1] * num_streams
        chunks.append(sum(driver.runner.steps[-1][num_streams:]))
    assert set(asked) == {num_streams}
    assert [step for step, size in enumerate(chunks) if size > chunk] == ([] if chunk == PREFILL else long)
    assert max(chunks) == (PREFILL if long else chunk)
    assert sum(chunks) >= min(5000, chunk // 2 * len(chunks))


def test_where_no_time_is_known_prompts_get_what_they_get_by_count() -> None:
    sizes = []
    for options in ({}, {"tokens_beside": lambda _: None}):
        driver = Driver(FakeRunner(num_blocks=2000, num_slots=8, max_step_tokens=72), PREFILL, **options)
        driver.submit(0, request(3, 90))
        driver.step()
        driver.submit(1, request(500, 3))
        driver.run()
        sizes.append(driver.runner.steps)
    assert sizes[0] == sizes[1]


def test_a_short_prompt_overtakes_a_long_one_which_keeps_half_of_each_step() -> None:
    driver = wide()
    driver.submit(0, request(1000, 3))
    driver.step()
    for request_id in range(1, 5):
        driver.submit(request_id, request([request_id] * 32, 3))
    for request_id in range(1, 5):
        driver.step()
        assert len(driver.tokens(request_id)[0]) == 1
    assert driver.core._sequences[0, 0].num_computed == 64 + 4 * 32


def test_of_those_behind_the_first_the_shortest_comes_first() -> None:
    driver = wide()
    driver.submit(0, request([0] * 1000, 3))
    driver.submit(1, request([1] * 1000, 3))
    driver.submit(2, request([2] * 32, 3))
    driver.step()
    assert len(driver.tokens(2)[0]) == 1


@pytest.mark.parametrize("prefill_tokens", [1, 16, 20, 48, 64])
def test_a_long_prompt_is_not_starved_by_short_ones(prefill_tokens: int) -> None:
    driver = wide(prefill_tokens=prefill_tokens)
    driver.submit(0, request(640, 1))
    for request_id in range(1, 1000):
        driver.submit(request_id, request([request_id] * 32, 1))
        driver.step()
        if driver.answers[0, 0].prompt is not None:
            break
    assert request_id <= 640 / (prefill_tokens / 2)


def test_equal_prompts_begin_in_the_order_of_their_arrival() -> None:
    driver = wide(num_slots=3)
    for request_id in range(12):
        driver.submit(request_id, request([request_id] * 50, 20))
    assert first_tokens(driver) == list(range(12))


def test_many_choices_take_their_turn_like_any_other_request() -> None:
    driver = wide(num_slots=2)
    driver.submit(0, *[request(9, 4, seed=seed) for seed in range(8)])
    driver.step()
    driver.submit(1, request([1] * 9, 4))
    driver.submit(2, request([2] * 9, 4))
    assert starts(driver)[:6] == [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (2, 0)]  # two at a time


def test_a_sequence_that_needs_much_room_is_not_overtaken_for_ever() -> None:
    driver = wide(num_blocks=20, num_slots=4)
    driver.submit(0, request([0] * 100, 100))
    driver.step()
    driver.submit(1, request([1] * 250, 20))
    for request_id in range(2, 40):
        driver.submit(request_id, request([request_id] * 20, 10))
    assert starts(driver)[:3] == [(0, 0), (1, 0), (2, 0)]


def test_a_preempted_sequence_runs_again_before_those_that_have_not_begun() -> None:
    driver = wide(num_blocks=8, num_slots=4)
    sequences = [request([request_id] * 30, 60, seed=request_id) for request_id in range(6)]
    for request_id, sequence in enumerate(sequences):
        driver.submit(request_id, sequence)
    assert order_of(driver, lambda answer: answer.finish_reason) == list(range(6))
    assert driver.core.stats().preemptions > 0
    assert [driver.tokens(request_id) for request_id in range(6)] == [[reference(sequence)] for sequence in sequences]


@pytest.mark.parametrize(("sequences", "chunk"), [(1, 16), (16, 16), (17, 32), (31, 32)])
def test_prompts_take_whole_steps_where_no_sequence_decodes_and_as_much_as_the_sequences_where_they_do(
    sequences: int, chunk: int
) -> None:
    driver = wide(min_prefill_tokens=16, num_slots=32, max_step_tokens=32 + PREFILL)
    driver.submit(0, request(128, 50))
    driver.step()
    driver.step()
    assert driver.runner.steps == [[64], [64]]
    driver.submit(1, *[request([1], 200, seed=seed) for seed in range(sequences - 1)])
    driver.step()
    driver.submit(2, request([2] * 2 * chunk, 2))
    driver.step()
    driver.step()
    assert driver.runner.steps[-2:] == [[1] * sequences + [chunk]] * 2
