"""The core on a runner whose tokens are a pure function of what the blocks hold."""

import pytest

from services.inference.engine.errors import RequestTooLargeError
from services.inference.engine.scheduling import block_pool
from services.inference.engine.scheduling.core import EngineCore
from tests.services.inference.engine.core_driver import Driver, expected_scores, request
from tests.services.inference.engine.fake_runner import FakeMemory, FakeRunner, reference


def test_a_sequence_gives_its_start_its_prompt_and_its_tokens() -> None:
    driver = Driver(FakeRunner())
    driver.submit(0, request(20, 7))
    driver.run()
    answer = driver.answers[0, 0]
    assert answer.prompt is not None
    assert (answer.prompt.num_cached_tokens, answer.prompt.logprobs) == (0, None)
    assert (answer.tokens, answer.finish_reason) == (reference(request(20, 7)), "length")
    assert driver.runner.steps == [[20]] + [[1]] * 6
    driver.check_empty()


def test_a_stop_id_ends_a_sequence_with_itself() -> None:
    tokens = reference(request(9, 50))
    stop = tokens[3]
    driver = Driver(FakeRunner())
    driver.submit(0, request(9, 50, stop_ids=(stop,)))
    driver.run()
    assert driver.tokens(0) == [tokens[: tokens.index(stop) + 1]]
    assert driver.answers[0, 0].finish_reason == "stop"


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 32, 40])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_log_probabilities_of_a_prompt_are_computed_even_where_it_is_cached(prompt: int, max_tokens: int) -> None:
    driver = Driver(FakeRunner())
    scored = request(prompt, max_tokens, scores=2)
    driver.submit(0, request(prompt))
    driver.run()
    driver.submit(1, scored, scored)
    driver.run()
    for index in range(2):
        answer = driver.answers[1, index]
        assert answer.prompt is not None
        assert answer.prompt.logprobs == expected_scores(scored)
        assert answer.tokens == reference(scored)
        assert answer.finish_reason == "length"
    assert driver.answers[1, 0].prompt.num_cached_tokens == 0
    driver.check_empty()


@pytest.mark.parametrize(
    ("prefill_tokens", "chunks"), [(40, [32, 32, 36]), (9, [9, 7, 9, 7, 9, 7, 9, 7, 9, 7, 9, 7, 4])]
)
def test_prompts_are_cut_where_blocks_end(prefill_tokens: int, chunks: list[int]) -> None:
    driver = Driver(FakeRunner(max_step_tokens=44), prefill_tokens)
    driver.submit(0, request(100, 1))
    driver.run()
    assert driver.runner.steps == [[chunk] for chunk in chunks]


def test_choices_share_one_prefill() -> None:
    driver = Driver(FakeRunner(num_slots=4, max_step_tokens=36))
    sequences = [request(50, 20, seed=seed) for seed in range(4)]
    driver.submit(0, *sequences)
    driver.run()
    assert driver.tokens(0) == [reference(sequence) for sequence in sequences]
    assert driver.runner.steps[:3] == [[32], [18], [1, 1, 1, 1]]
    assert [driver.answers[0, index].prompt.num_cached_tokens for index in range(4)] == [0, 50, 50, 50]
    assert driver.core.stats().prefix_tokens_hit == 150
    driver.check_empty()


def test_prompts_that_begin_alike_compute_their_beginning_once() -> None:
    driver = Driver(FakeRunner(max_step_tokens=200), prefill_tokens=160)
    sequences = [request([*range(100, 164), tail], 3) for tail in range(3)]
    driver.submit(0, sequences[0])
    driver.submit(1, sequences[1])
    driver.submit(2, sequences[2])
    driver.run()
    assert [driver.tokens(request_id) for request_id in range(3)] == [[reference(sequence)] for sequence in sequences]
    assert driver.runner.steps[:2] == [[65], [1, 1, 1]]
    assert driver.core.stats().prefill_tokens == 67


def test_an_answer_is_found_as_part_of_the_next_prompt() -> None:
    driver = Driver(FakeRunner())
    first = request(30, 20)
    driver.submit(0, first)
    driver.run()
    conversation = [*first.prompt_ids, *driver.tokens(0)[0], 7, 8]
    driver.submit(1, request(conversation))
    driver.run()
    assert driver.answers[1, 0].prompt.num_cached_tokens == 48
    assert driver.tokens(1) == [reference(request(conversation))]


def test_the_last_token_of_a_cached_prompt_is_computed() -> None:
    driver = Driver(FakeRunner())
    for request_id in range(2):
        driver.submit(request_id, request(32))
        driver.run()
    assert driver.answers[1, 0].prompt.num_cached_tokens == 16
    assert driver.tokens(1) == [reference(request(32))]


def test_the_blocks_used_last_stay_longest() -> None:
    driver = Driver(FakeRunner(num_blocks=6))
    for request_id, first in enumerate((100, 200, 100, 300)):  # 3 blocks each, of which 2 full ones stay
        driver.submit(request_id, request(list(range(first, first + 40)), 2))
        driver.run()
    hits = []
    for request_id, first in enumerate((100, 200), start=10):
        driver.submit(request_id, request(list(range(first, first + 33)), 2))
        driver.run()
        hits.append(driver.answers[request_id, 0].prompt.num_cached_tokens)
    assert hits == [32, 16]  # of the second prompt the end went first


def test_a_prompt_is_scored_whole_though_its_sequence_is_preempted_within_it() -> None:
    driver = Driver(FakeRunner(num_blocks=12), prefill_tokens=2)
    scored = request(128, 2, scores=1)
    driver.submit(0, request([0] * 16, 100))
    while not driver.tokens(0)[0]:
        driver.step()
    driver.submit(1, scored)
    while driver.core.stats().preemptions == 0:
        driver.step()
        assert driver.answers[1, 0].prompt is None
    assert driver.core._sequences[1, 0].num_computed == 0
    driver.run()
    assert driver.answers[1, 0].prompt.logprobs == expected_scores(scored)


def test_a_sequence_is_not_admitted_to_be_preempted_at_once() -> None:
    driver = Driver(FakeRunner(num_blocks=4))
    driver.submit(0, request([0] * 30, 34))
    driver.submit(1, request([1] * 30, 34))
    driver.run()
    assert driver.core.stats().preemptions == 0


def test_what_never_fits_is_refused_and_nothing_of_it_queued() -> None:
    driver = Driver(FakeRunner(num_blocks=40))
    assert request(320, 320).num_blocks == 40
    with pytest.raises(RequestTooLargeError, match="656 tokens of KV cache, and it holds 640"):
        driver.submit(0, request(320, 320), request(320, 322))
    assert not driver.core.has_work
    driver.submit(1, request(320, 321))
    driver.run()
    assert driver.tokens(1) == [reference(request(320, 321))]


def test_no_room_for_prompts_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no room for prompts in a step: 4 tokens, of which 4"):
        EngineCore(FakeRunner(max_step_tokens=4), prefill_tokens=32)


def test_six_sequences_share_a_pool_that_holds_four() -> None:  # B70
    driver = Driver(FakeRunner(num_blocks=40, num_slots=8, max_step_tokens=40))
    sequences = [request([request_id] * 80, 81, seed=request_id) for request_id in range(6)]
    assert {sequence.num_blocks for sequence in sequences} == {10}
    for request_id, sequence in enumerate(sequences):
        driver.submit(request_id, sequence)
    with pytest.raises(RequestTooLargeError):
        driver.submit(6, request(80, 600))
    driver.run()
    assert [driver.tokens(request_id) for request_id in range(6)] == [[reference(sequence)] for sequence in sequences]
    assert driver.core.stats().preemptions > 0
    driver.check_empty()


def test_memory_is_taken_before_cached_blocks_are_evicted() -> None:
    memory = FakeMemory(num_ready=10, limit=40)
    driver = Driver(FakeRunner(num_blocks=40, block_memory=memory))
    driver.submit(0, request([1] * 80, 1))
    driver.run()
    assert driver.core.stats()._replace(steps=0)[2:6] == (0, 5, 40, 10)
    driver.submit(1, request([2] * 150, 1))  # alone, it waits for memory
    driver.run()
    assert driver.core.stats().kv_blocks_cached == 5 + 9
    assert driver.core.stats().kv_blocks_allocated == 15
    memory.limit = 15
    driver.submit(2, request([3] * 150, 1))
    driver.run()
    assert driver.core.stats().kv_blocks_cached == 14
    assert [driver.tokens(2), driver.core.stats().kv_blocks_allocated] == [[reference(request([3] * 150, 1))], 15]


def test_memory_that_was_not_needed_for_two_windows_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to what a running sequence holds; a prompt whose cached blocks are gone is computed again."""
    now = [0.0]
    monkeypatch.setattr(block_pool.time, "monotonic", lambda: now[0])
    memory = FakeMemory(num_ready=12, limit=40)
    driver = Driver(FakeRunner(num_blocks=40, block_memory=memory))
    driver.submit(0, request([1] * 400, 1))
    driver.run()
    assert driver.core.stats().kv_blocks_allocated == 25
    allocated = []
    for number in range(1, 6):
        now[0] += 1 + block_pool._WINDOW_SECONDS
        driver.submit(number, request([1 + number] * 40, 4))
        driver.run()
        memory.grow(100)  # nothing is given back before
        driver.step()
        allocated.append(driver.core.stats().kv_blocks_allocated)
    assert allocated[:2] == [27, 27], "the 25 that were held, and two ahead"
    assert allocated[-1] < 12
    assert driver.core.stats().kv_blocks_cached < 12
    driver.submit(6, request([1] * 400, 2))
    driver.run()
    assert driver.tokens(6) == [reference(request([1] * 400, 2))]
    driver.check_empty()


def test_while_memory_is_taken_others_go_on_and_nothing_is_evicted() -> None:
    memory = FakeMemory(num_ready=12, limit=40)
    driver = Driver(FakeRunner(num_blocks=40, block_memory=memory))
    driver.submit(0, request([1] * 64, 1))
    driver.run()
    driver.submit(1, request([2] * 64, 60))
    driver.step()
    driver.submit(2, request([3] * 100, 2))
    for _ in range(10):
        driver.step()
        assert (len(driver.core._scheduler.running), driver.core.stats().kv_blocks_cached >= 4) == (1, True)
    memory.grow(100)
    driver.step()
    assert len(driver.core._scheduler.running) == 2
    driver.run()
    assert driver.core.stats().preemptions == 0
    assert [driver.tokens(1), driver.tokens(2)] == [
        [reference(request([2] * 64, 60))],
        [reference(request([3] * 100, 2))],
    ]


def test_where_no_memory_is_left_the_youngest_waits() -> None:
    """B70: as with a cache of that size."""
    memory = FakeMemory(num_ready=12, limit=12)
    driver = Driver(FakeRunner(num_blocks=40, num_slots=4, block_memory=memory))
    for request_id in range(3):
        driver.submit(request_id, request([request_id] * 40, 100))
    driver.run()
    assert [driver.tokens(number) for number in range(3)] == [[reference(request([n] * 40, 100))] for n in range(3)]
    assert driver.core.stats().preemptions > 0
    driver.check_empty()


@pytest.mark.parametrize("order", [(1, 7, 30), (30, 7, 1), (7, 30, 1)])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_neighbors_of_any_length_that_join_at_any_step_change_nothing(order: tuple[int, ...], late: int) -> None:
    """B71."""
    driver = Driver(FakeRunner())
    for request_id, length in enumerate(order):
        driver.submit(request_id, request(length, 20))
        for _ in range(late):
            driver.step()
    driver.run()
    assert [driver.tokens(request_id) for request_id in range(3)] == [
        [reference(request(length, 20))] for length in order
    ]


def test_nothing_of_a_canceled_sequence_is_in_the_next_one() -> None:  # B72
    driver = Driver(FakeRunner(num_slots=1, num_blocks=12))
    for request_id in range(0, 100, 2):
        driver.submit(request_id, request([request_id, *range(100, 150)], 100))
        for _ in range(request_id // 4):
            driver.step()
        driver.core.cancel(request_id)
        driver.check_empty()
        driver.submit(request_id + 1, request(7))
        driver.run()
        assert driver.tokens(request_id + 1) == [reference(request(7))]
