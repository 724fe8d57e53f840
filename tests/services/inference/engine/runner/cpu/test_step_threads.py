"""How many threads run a step, by times that are made up."""

from collections.abc import Callable
from statistics import mean

import pytest

from services.inference.engine.runner.cpu.step_threads import StepThreads, candidate_thread_counts

Seconds = Callable[[int, int], float]


def measured(counts: list[int], seconds: Seconds, max_rows: int = 32) -> tuple[StepThreads, list[tuple[int, int]]]:
    """After loading, and the steps that were run for it."""
    chosen, runs = StepThreads(counts), []

    def run(rows: int, count: int) -> float:
        runs.append((rows, count))
        return seconds(rows, count)

    chosen.measure(run, max_rows)
    return chosen, runs


def serve(chosen: StepThreads, rows: int, seconds: Seconds, steps: int) -> list[int]:
    """The numbers of threads that so many steps ran in."""
    counts = []
    for _ in range(steps):
        counts.append(chosen.choose(rows))
        chosen.record(rows, counts[-1], seconds(rows, counts[-1]))
    return counts


def memory_bound(rows: int, count: int) -> float:
    """Two threads are slower up to four rows and gain 10 % up to eight."""
    return rows * 1e-3 / count if rows > 8 else 8e-3 * (1.2 if count > 1 and rows <= 4 else 1 - 0.1 * (count > 1))


def test_each_number_of_rows_gets_the_number_of_threads_that_is_fast_for_it() -> None:
    chosen, runs = measured([1, 2], memory_bound)
    assert [chosen.best(rows) for rows in (1, 4, 5, 8, 9, 16, 33, 1000)] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert {rows for rows, count in runs if count == 1} == {1, 2, 3, 4, 6, 8, 12}, (
        "one thread no further than it may win"
    )
    assert {rows for rows, _ in runs} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}


def test_more_threads_have_to_be_worth_their_processors() -> None:
    for saved, best in ((0.09, 1), (0.11, 2)):
        chosen, _ = measured([1, 2], lambda _, count, saved=saved: 1e-3 * (1 - saved * (count - 1)))  # type: ignore[misc]
        assert chosen.best(1) == best
    chosen, _ = measured(candidate_thread_counts(16), lambda _, count: 1e-3 * (1 / count + count / 30))
    assert chosen.best(1) == 4


def test_a_large_model_is_not_run_often() -> None:
    _, runs = measured([1, 2], lambda _, count: 1 / count)
    assert {rows for rows, _ in runs} == {1}
    assert len(runs) <= 12


def test_one_disturbed_step_decides_nothing_and_a_busy_processor_does() -> None:
    idle = lambda _, count: 2e-3 / count  # noqa: E731
    chosen, _ = measured([1, 2], idle)
    chosen.record(1, 2, 0.1)
    assert chosen.best(1) == 2
    busy = lambda _, count: 2e-3 if count == 1 else 9e-3  # noqa: E731
    assert serve(chosen, 1, busy, 20)[-1] == 1
    counts = serve(chosen, 1, busy, 5000)
    assert 0 < counts.count(2) < 20, "what took four times as long is tried, but rarely"
    assert serve(chosen, 1, idle, 20_000)[-1] == 2, "and chosen again once it is fast"


def test_a_number_that_was_slow_for_a_while_comes_back_soon() -> None:
    usual = lambda _, count: 5e-3 if count == 1 else 4e-3  # noqa: E731
    chosen, _ = measured([1, 2], usual)
    assert serve(chosen, 1, lambda _, count: 5e-3 if count == 1 else 9e-3, 10)[-1] == 1
    assert serve(chosen, 1, usual, 300)[-1] == 2


def test_the_number_in_use_stays_where_times_are_close() -> None:
    usual = lambda _, count: 5e-3 if count == 1 else 4e-3  # noqa: E731
    chosen, _ = measured([1, 2], usual)
    for close, best in ((4.6e-3, 2), (4.8e-3, 1), (4.6e-3, 1)):  # 8 and 4 % saved; 10 to begin, half to stay
        serve(chosen, 1, lambda _, count, close=close: 5e-3 if count == 1 else close, 1000)  # type: ignore[misc]
        assert chosen.best(1) == best


def test_trials_are_few_and_never_of_long_steps() -> None:
    chosen, _ = measured([1, 2], lambda _, count: 2e-3 / count)
    assert mean(count == 1 for count in serve(chosen, 1, lambda _, count: 2e-3 / count, 4000)) < 0.01
    assert set(serve(chosen, 30, lambda _, count: 30e-3 / count, 4000)) == {2}


def test_of_one_number_of_threads_only_times_are_learned() -> None:
    chosen, runs = measured([3], lambda rows, _: rows * 1e-3)
    assert {count for _, count in runs} == set(serve(chosen, 1, lambda *_: 1e-3, 1000)) == {3}
    assert max(rows for rows, _ in runs) == 24, "steps of more than 20 ms are not run for their time"


def test_how_many_rows_fit_into_a_time() -> None:
    """A step takes 2 ms and 0.1 for each row beyond four."""
    seconds = lambda rows, _: 2e-3 + 1e-4 * max(rows - 4, 0)  # noqa: E731
    chosen, _ = measured([1], seconds, max_rows=100)
    for rows, factor, most in ((1, 1.8, 20), (4, 1.8, 20), (8, 1.5, 20), (32, 1.2, 41), (16, 1.0, 16)):
        assert chosen.rows_within(rows, factor) in {most - 1, most}
    assert chosen.rows_within(64, 10) == 96, "the longest of which anything is known"
    assert chosen.rows_within(200, 1.5) is None
    assert StepThreads([1]).rows_within(1, 1.5) is None
    for sizes, most, why in (
        ((24,), 18, "a disturbed step of 24 rows counts as no longer than one of 32"),
        ((32, 48, 64, 96), 16, "what is measured in service counts"),
    ):
        for size in 7 * sizes:
            chosen.record(size, 1, 8e-3)
        assert chosen.rows_within(8, 1.5) == most, why


@pytest.mark.parametrize(
    ("processors", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 5, 6]), (16, [1, 2, 4, 8, 15, 16])]
)
def test_numbers_of_threads_on_machines_of_all_sizes(processors: int, counts: list[int]) -> None:
    assert sorted(set(candidate_thread_counts(processors))) == counts
