"""What the core does when the runner fails, and when a client leaves."""

import pytest

from services.inference.engine.runner.protocol import RunnerLostError, Segment, StepResult
from tests.services.inference.engine.core_driver import Driver, expected_scores, request
from tests.services.inference.engine.fake_runner import FakeRunner, reference

POISON = 77
REQUESTS = [request([request_id, *range(100, 120)], 30, seed=request_id) for request_id in range(4)]


def started(driver: Driver, steps: int = 6) -> Driver:
    """Four sequences in the middle of their answers."""
    for request_id, sequence in enumerate(REQUESTS):
        driver.submit(request_id, sequence)
    for _ in range(steps):
        driver.step()
    return driver


def test_a_sequence_alone_in_a_failed_step_gets_the_true_cause() -> None:  # B74
    driver = Driver(FakeRunner(faults=[None, None, MemoryError("38 MB for the scores")]))
    driver.submit(0, request(9))
    driver.run()
    assert driver.answers[0, 0].failure == "generation failed: MemoryError: 38 MB for the scores"
    assert [(line["event"], line["log_level"], line["rows"]) for line in driver.log] == [("step failed", "error", 1)]
    driver.check_empty()
    driver.submit(1, request(9))
    driver.run()
    assert driver.tokens(1) == [reference(request(9))]


def test_a_step_that_failed_once_costs_no_sequence_a_token() -> None:  # B74
    driver = started(Driver(FakeRunner()))
    driver.runner.faults = [RuntimeError("once")]
    driver.run()
    assert driver.core.failures_in_a_row == 0
    assert [driver.tokens(request_id) for request_id in range(4)] == [[reference(sequence)] for sequence in REQUESTS]


@pytest.mark.parametrize("length", [1, 20, 40, 60])
def test_only_the_sequence_that_fails_alone_fails(length: int) -> None:  # B40
    driver = started(Driver(FakeRunner(poison=POISON, num_slots=5, max_step_tokens=37)))
    driver.submit(4, request([POISON] * length))
    driver.run()
    assert driver.answers[4, 0].failure == f"generation failed: ValueError: token {POISON}"
    assert [driver.tokens(request_id) for request_id in range(4)] == [[reference(sequence)] for sequence in REQUESTS]
    driver.check_empty()


def test_choices_that_share_the_failing_prompt_fail_together() -> None:
    driver = started(Driver(FakeRunner(poison=POISON, num_slots=6, max_step_tokens=38)))
    driver.submit(4, *[request([POISON] * 40, seed=seed) for seed in range(2)])
    driver.run()
    assert {driver.answers[4, index].failure for index in range(2)} == {
        f"generation failed: ValueError: token {POISON}"
    }
    assert [driver.tokens(request_id) for request_id in range(4)] == [[reference(sequence)] for sequence in REQUESTS]
    driver.check_empty()


def test_a_broken_runner_is_distinguished_from_sequences_that_are_to_blame() -> None:
    driver = started(Driver(FakeRunner()))
    driver.runner.faults = [OSError("gone")] * 50
    failures = []
    while driver.core.has_work:
        driver.step()
        failures.append(driver.core.failures_in_a_row)
    assert failures == [0, 0, 1, 2, 2, 3, 4]  # of four sequences, two, one, one, two, one, one
    assert [driver.answers[request_id, 0].failure for request_id in range(4)] == [
        "generation failed: OSError: gone"
    ] * 4
    driver.check_empty()
    driver.runner.faults = []
    driver.submit(4, request(9))
    driver.run()
    assert driver.core.failures_in_a_row == 0


BROKEN = OSError("gone")


@pytest.mark.parametrize("operations", ["open", "open run", "run", "copy run", "open copy run"])
def test_a_runner_that_is_broken_is_found_by_whatever_fails_first(operations: str) -> None:
    """After a fault that stays, opening sequences and copying blocks fail like steps do: each of 30 requests counts."""
    driver = Driver(FakeRunner())
    for name, faults in (("open", "open_faults"), ("copy", "copy_faults"), ("run", "faults")):
        if name in operations.split():
            setattr(driver.runner, faults, [BROKEN] * 1000)
    counted = []
    for request_id in range(30):
        driver.submit(request_id, *[request(9, seed=seed) for seed in range(2)])
        driver.run()
        counted.append(driver.core.failures_in_a_row)
        assert driver.answers[request_id, 0].failure == "generation failed: OSError: gone"
    assert counted == sorted(set(counted)), "each request counts"
    driver.check_empty()
    driver.runner.open_faults, driver.runner.copy_faults, driver.runner.faults = [], [], []
    driver.submit(30, request(9))
    driver.run()
    assert driver.core.failures_in_a_row == 0


def test_sequences_that_cannot_be_opened_or_forked_are_not_taken_for_a_broken_runner() -> None:
    driver = Driver(FakeRunner())
    for request_id in range(8):
        driver.runner.open_faults = [MemoryError()]
        driver.submit(request_id, request(9))
        driver.run()
        driver.runner.copy_faults = [RuntimeError("copy")]
        driver.submit(100 + request_id, *[request(9, seed=seed) for seed in range(2)])
        driver.run()
        assert driver.answers[request_id, 0].failure == "generation failed: MemoryError"
        assert driver.answers[100 + request_id, 1].failure == "generation failed: RuntimeError: copy"
        assert driver.core.failures_in_a_row == 0
    driver.check_empty()


def test_a_broken_runner_fails_few_of_the_sequences_that_wait() -> None:
    """The others are for the process that takes its place."""
    driver = Driver(FakeRunner(open_faults=[BROKEN] * 1000))
    for request_id in range(30):
        driver.submit(request_id, request(9))
    while driver.core.failures_in_a_row < 3:
        driver.step()
    assert sum(answer.failure is not None for answer in driver.answers.values()) == 3


def test_a_sequence_that_cannot_be_opened_where_others_hold_the_whole_cache() -> None:
    driver = Driver(FakeRunner(num_blocks=4, num_slots=2))
    driver.submit(0, request(40, 20))
    driver.step()
    pool = driver.core._scheduler.pool
    while pool.num_available:
        pool.allocate()
    driver.core._probe.check()
    assert driver.core.failures_in_a_row == 0


LOST = RunnerLostError("the GPU failed: illegal memory access")


@pytest.mark.parametrize("faults", ["faults", "open_faults", "copy_faults"])
@pytest.mark.parametrize("steps", range(3))
def test_a_runner_that_is_lost_is_no_sequences_fault(faults: str, steps: int) -> None:
    """It is raised at once, in any state, and no sequence fails."""
    driver = started(Driver(FakeRunner(num_slots=8, max_step_tokens=40)), steps)
    setattr(driver.runner, faults, [LOST])
    driver.submit(4, *[request(20, seed=seed) for seed in range(3)])
    with pytest.raises(RunnerLostError, match="illegal memory access"):
        driver.run()
    assert {answer.failure for answer in driver.answers.values()} == {None}


def test_a_runner_that_is_found_lost_by_the_probe() -> None:
    driver = Driver(FakeRunner(faults=[RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"), LOST]))
    driver.submit(0, request(9))
    with pytest.raises(RunnerLostError):
        driver.run()


def test_many_sequences_that_fail_alone_are_not_taken_for_a_broken_runner() -> None:
    """Nor do they use up what would be left to a runner that does break."""
    driver = Driver(FakeRunner(poison=POISON, num_slots=8, max_step_tokens=40))
    for request_id in range(7):
        driver.submit(request_id, request([POISON, request_id] * 10))
    driver.submit(7, request(9))
    most = 0
    while driver.core.has_work:
        driver.step()
        most = max(most, driver.core.failures_in_a_row)
    assert most == 0
    assert {driver.answers[request_id, 0].failure for request_id in range(7)} == {
        f"generation failed: ValueError: token {POISON}"
    }
    assert driver.tokens(7) == [reference(request(9))]
    driver.check_empty()


def test_a_sequence_that_fails_alone_is_found_by_halves() -> None:
    """And others run together meanwhile, and all of them after it."""
    driver = Driver(FakeRunner(poison=POISON, num_slots=32, max_step_tokens=160, num_blocks=80), prefill_tokens=128)
    for request_id in range(32):
        driver.submit(request_id, request([POISON if request_id == 20 else 9, request_id], 8, seed=request_id))
    driver.step()
    driver.runner.steps.clear()
    while driver.core._splitter._pending:
        driver.step()
    driver.step()
    # The second half holds it, then the second four, its first half; the runner is probed; what is left runs as it was.
    assert [len(step) for step in driver.runner.steps] == [16, 16, 8, 4, 4, 2, 1, 1, 1, 2, 8, 31]
    assert driver.answers[20, 0].failure == f"generation failed: ValueError: token {POISON}"
    driver.run()
    driver.check_empty()


def test_the_runner_is_probed_where_the_cache_is_full() -> None:
    driver = Driver(FakeRunner(num_blocks=2, num_slots=2, max_step_tokens=34, poison=POISON))
    driver.submit(0, request([POISON] * 16, 1))
    driver.submit(1, request(14, 2))
    driver.run()
    assert driver.core.failures_in_a_row == 0
    assert driver.tokens(1) == [reference(request(14, 2))]
    driver.check_empty()


def eight_sequences(runner: FakeRunner, max_tokens: int = 30) -> Driver:
    driver = Driver(runner)
    for request_id in range(8):
        driver.submit(request_id, request([request_id, 9], max_tokens, seed=request_id))
    return driver


def check_nothing_was_lost(driver: Driver, max_tokens: int = 30) -> None:
    assert [driver.tokens(request_id) for request_id in range(8)] == [
        [reference(request([request_id, 9], max_tokens, seed=request_id))] for request_id in range(8)
    ]
    assert driver.core.failures_in_a_row == 0
    driver.check_empty()


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_steps_of_more_sequences_than_the_runner_can_run_get_smaller(most: int) -> None:
    """They are not tried in vain before each token: here that would be 30 times."""
    driver = eight_sequences(FakeRunner(most_segments=most, num_slots=8, max_step_tokens=40))
    driver.run()
    check_nothing_was_lost(driver)
    assert len(driver.log) <= 3 + len(driver.runner.steps) // 100


def test_steps_get_larger_again_when_they_can() -> None:
    driver = eight_sequences(
        FakeRunner(most_segments=1, num_slots=8, max_step_tokens=40, num_blocks=64), max_tokens=100
    )
    for _ in range(11):
        driver.step()
    assert len(driver.runner.steps[-1]) == 1
    driver.runner.most_segments = None
    driver.run()
    assert len(driver.runner.steps[-1]) == 8
    assert [line["rows"] for line in driver.log] == [8, 4, 2]
    check_nothing_was_lost(driver, max_tokens=100)


def test_sequences_that_fail_only_together_both_get_through() -> None:
    driver = eight_sequences(FakeRunner(num_slots=8, max_step_tokens=40))
    run = driver.runner.run

    def run_apart(segments: list[Segment]) -> StepResult:
        result = run(segments)
        if {2, 3} <= {token.slot for token in result.sampled_tokens}:
            raise MemoryError("for both")
        return result

    driver.runner.run = run_apart  # type: ignore[assignment,method-assign]
    driver.run()
    check_nothing_was_lost(driver)


def test_a_sequence_that_is_canceled_between_the_parts_of_a_step_is_not_run() -> None:
    driver = eight_sequences(FakeRunner(most_segments=4, num_slots=8, max_step_tokens=40))
    driver.step()  # of eight sequences, which fails
    driver.step()  # of the first four
    driver.core.cancel(5)
    driver.step()
    assert [len(step) for step in driver.runner.steps] == [8, 4, 3]
    driver.run()
    assert driver.tokens(5) == [[]]
    driver.check_empty()


def test_a_sequence_without_a_distribution_fails_alone() -> None:  # B48
    driver = started(Driver(FakeRunner(blind=POISON, num_slots=5, max_step_tokens=37)))
    driver.submit(4, request([*range(200, 240), POISON]))
    driver.run()
    assert "logits are NaN or infinite" in str(driver.answers[4, 0].failure)
    assert [driver.tokens(request_id) for request_id in range(4)] == [[reference(sequence)] for sequence in REQUESTS]
    driver.submit(5, request(list(range(200, 240))))
    driver.run()
    assert driver.answers[5, 0].prompt.num_cached_tokens == 0  # nothing of the failed sequence is used again
    driver.check_empty()


def test_a_sequence_that_cannot_be_opened_fails_alone() -> None:
    driver = started(Driver(FakeRunner(num_slots=5, max_step_tokens=37)))
    driver.runner.open_faults = [MemoryError()]
    driver.submit(4, request(9))
    driver.run()
    assert driver.answers[4, 0].failure == "generation failed: MemoryError"
    assert [driver.tokens(request_id) for request_id in range(4)] == [[reference(sequence)] for sequence in REQUESTS]
    driver.check_empty()


@pytest.mark.parametrize("reopened", range(4))
def test_a_sequence_that_cannot_be_opened_again_after_a_failed_step_fails_alone(reopened: int) -> None:
    driver = started(Driver(FakeRunner()))
    driver.runner.faults = [RuntimeError("once")]
    driver.runner.open_faults = [MemoryError("again") if index == reopened else None for index in range(4)]
    driver.run()
    failures = [driver.answers[request_id, 0].failure for request_id in range(4)]
    assert failures == [
        "generation failed: MemoryError: again" if request_id == reopened else None for request_id in range(4)
    ]
    assert [driver.tokens(request_id) for request_id in range(4) if request_id != reopened] == [
        [reference(sequence)] for request_id, sequence in enumerate(REQUESTS) if request_id != reopened
    ]
    driver.check_empty()


def test_a_choice_whose_block_cannot_be_copied_fails_alone() -> None:
    driver = Driver(FakeRunner(copy_faults=[RuntimeError("copy")]))
    sequences = [request(20, seed=seed) for seed in range(3)]
    driver.submit(0, *sequences)
    driver.run()
    assert [driver.answers[0, index].failure for index in range(3)] == [
        None,
        "generation failed: RuntimeError: copy",
        None,
    ]
    assert driver.tokens(0) == [reference(sequences[0]), [], reference(sequences[2])]
    driver.check_empty()


@pytest.mark.parametrize(
    ("part", "fault"),
    [("sampled_tokens", "sampled for slots [] instead of [0]"), ("prompt_logprobs", "scored other prompt tokens")],
)
def test_a_runner_that_does_not_answer_what_it_was_asked_is_a_failed_step(part: str, fault: str) -> None:
    driver = Driver(FakeRunner())
    driver.submit(0, request(9, scores=1))
    run = driver.runner.run
    driver.runner.run = lambda segments: (result := run(segments), getattr(result, part).clear())[0]
    driver.run()
    assert fault in str(driver.answers[0, 0].failure)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("sequence", [None, 0, 1, 2])
def test_a_canceled_sequence_costs_nothing_from_the_next_step_on(steps: int, sequence: int | None) -> None:
    """B35: queued (request 1's last sequences), in its prompt, leading or sharing one, decoding."""
    driver = Driver(FakeRunner(num_slots=4, max_step_tokens=36))
    driver.submit(0, request(40, 60, seed=9))
    sequences = [request(list(range(200, 260)), 20, seed=seed) for seed in range(5)]
    driver.submit(1, *sequences)
    for _ in range(steps):
        driver.step()
    driver.core.cancel(1, sequence)
    driver.check()
    left = [other for other in range(5) if sequence not in {None, other}]
    assert sorted(id_.sequence_index for id_ in driver.core._sequences if id_.request_id == 1) == left
    driver.run()
    assert driver.tokens(0) == [reference(request(40, 60, seed=9))]
    for index, request_ in enumerate(sequences):
        expected = reference(request_)
        tokens = driver.answers[1, index].tokens
        assert tokens == (expected if index in left else expected[: len(tokens)])
        assert index in left or driver.answers[1, index].finish_reason is None
    driver.check_empty()


def test_who_takes_over_a_scored_prompt_has_all_its_scores() -> None:
    driver = Driver(FakeRunner())
    scored = request(60, 3, scores=1)
    driver.submit(0, *[scored] * 3)
    driver.step()
    driver.core.cancel(0, 0)
    driver.run()
    for index in (1, 2):
        assert driver.answers[0, index].prompt.logprobs == expected_scores(scored)
        assert driver.answers[0, index].tokens == reference(scored)
    assert sum(map(sum, driver.runner.steps)) == 60 + 2 * 2


def test_canceling_what_is_preempted_finished_or_unknown() -> None:
    driver = Driver(FakeRunner(num_blocks=8, num_slots=4))
    sequences = [request([request_id] * 30, 60, seed=request_id) for request_id in range(3)]
    for request_id, sequence in enumerate(sequences):
        driver.submit(request_id, sequence)
    while not driver.core.stats().preemptions:
        driver.step()
    (preempted,) = driver.core._scheduler.waiting._preempted
    driver.core.cancel(preempted.id.request_id)
    driver.check()
    driver.core.cancel(99)
    driver.core.cancel(0, 5)
    driver.run()
    driver.core.cancel(0)
    others = [request_id for request_id in range(3) if request_id != preempted.id.request_id]
    assert [driver.tokens(request_id) for request_id in others] == [
        [reference(sequences[request_id])] for request_id in others
    ]
    driver.check_empty()
