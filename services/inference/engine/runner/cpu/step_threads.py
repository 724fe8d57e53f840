"""How many threads run a step: chosen by time, measured when the model is loaded and in every step since.

More threads do not always make a step shorter. At every part of a layer they wait for the one that is last, also where
it has lost its processor; a step of few rows is bound by memory, which one thread may use up.
"""

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from statistics import median

_SIZES = [1, *(size for power in range(1, 32) for size in (2**power, 3 * 2 ** (power - 1)))]
"""Steps of as many rows as lie between two of these are taken for equally long."""

_WINDOW = 7  # times that are kept: one that was disturbed does not decide
_TRIALS, _TRIAL_SECONDS = 5, 0.1  # in loading; fewer where they take longer, but two
_LONGEST_TRIAL_SECONDS = 0.02
_TRIAL_COST = 0.005  # of all time: a number that took twice as long is tried once in 200 steps
_LEAST_STEPS_BETWEEN_TRIALS = 100
_LONGEST_DELAY_SECONDS = 0.01  # numbers that took longer than the best by as much are not tried
_LEAST_SHARE = 0.2
"""Further threads have to save this share of what they would save at best: other processes, HTTP's first, need their
processors too. From one thread to two that is 10 % of the time. Half of it is enough for the number in use: times that
HTTP disturbs would change it back and forth."""


def candidate_thread_counts(num_processors: int) -> list[int]:
    """Numbers of threads to try: all processors, one less, which leaves one to HTTP, and powers of two."""
    powers = [1 << power for power in range((num_processors - 1).bit_length())]
    return [*powers, num_processors - 1, num_processors] if num_processors > 1 else [1]


class StepThreads:
    """Numbers of threads to choose from, and the times of steps with each.

    Args:
        counts: The numbers of threads, at least one.
    """

    def __init__(self, counts: Sequence[int]):
        self._counts = sorted(set(counts))
        self._sizes: dict[int, _Times] = {}

    def choose(self, num_rows: int) -> int:
        """How many threads should run a step of so many rows; now and then another number, to learn its time."""
        return self._times(num_rows).next()

    def best(self, num_rows: int) -> int:
        """The number that is best by the times so far."""
        return self._times(num_rows).chosen

    def record(self, num_rows: int, num_threads: int, seconds: float) -> None:
        """Take into account how long a step took."""
        self._times(num_rows).add(num_threads, seconds)

    def rows_within(self, num_rows: int, factor: float) -> int | None:
        """The most rows of a step that takes at most `factor` times as long as one of `num_rows`.

        By the times so far, and a line between two of them; None where nothing is known of longer steps. None of them
        counts as longer than one of more rows: times that were disturbed would stay, since no such step is run again.
        """
        last_rows, last_seconds = num_rows, self._times(num_rows).seconds
        limit = factor * last_seconds
        known = [(_SIZES[size], times.seconds) for size, times in sorted(self._sizes.items()) if times.seconds]
        shortest = [*accumulate((seconds for _, seconds in reversed(known)), min)]
        for (rows, _), seconds in zip(known, reversed(shortest), strict=True):
            if rows <= num_rows or not last_seconds:
                continue
            if seconds > limit:
                return last_rows + int((limit - last_seconds) / (seconds - last_seconds) * (rows - last_rows))
            last_rows, last_seconds = rows, seconds
        return last_rows if last_rows > num_rows else None

    def measure(self, run: Callable[[int, int], float], max_rows: int) -> None:
        """Time steps of one row and more, with all numbers of threads until the largest is best, and then with that.

        Args:
            run: Runs a step of so many rows in so many threads, and returns its time in seconds.
            max_rows: The most rows that it takes. Fewer are run where a step takes longer than 20 ms.
        """
        counts = self._counts
        for rows in _SIZES[: bisect_right(_SIZES, max_rows)]:
            times = self._times(rows)
            end = time.perf_counter() + _TRIAL_SECONDS
            for trial in range(_TRIALS + 1):  # the first is not counted: what it reads is in no cache
                for count in counts:
                    seconds = run(rows, count)
                    if trial:
                        times.add(count, seconds)
                if trial >= 2 and time.perf_counter() > end:
                    break
            if times.chosen == self._counts[-1]:
                counts = self._counts[-1:]
                if times.seconds > _LONGEST_TRIAL_SECONDS:
                    return

    def _times(self, num_rows: int) -> "_Times":
        size = bisect_left(_SIZES, num_rows)
        if size not in self._sizes:
            self._sizes[size] = _Times(self._counts)
        return self._sizes[size]


class _Times:
    """The last times of steps of one size with each number of threads.

    Attributes:
        chosen: The number that is best by these.
        seconds: The median of its times, 0 before the first.
    """

    def __init__(self, counts: Sequence[int]):
        self._counts = counts
        self._seconds: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in counts]
        self._medians = [0.0] * len(counts)  # 0 for unknown
        self._steps = self._trials = 0
        self._promising: int | None = None  # the number of threads that would be best if all steps were as the last one
        self.chosen = counts[-1]
        self.seconds = 0.0

    def add(self, count: int, seconds: float) -> None:
        number = self._counts.index(count)
        self._seconds[number].append(seconds)
        self._medians[number] = median(self._seconds[number])
        best = self._best(self._medians)
        self.chosen, self.seconds = self._counts[best], self._medians[best]
        as_now = [*self._medians[:number], seconds, *self._medians[number + 1 :]]
        self._promising = count if number != best and self._best(as_now) == number else None

    def next(self) -> int:
        if self._promising is not None:  # a few times more, and it is chosen
            return self._promising
        self._steps += 1
        number = self._counts.index(self.chosen)
        number += 1 if (self._trials % 2 == 0 or number == 0) and number + 1 < len(self._counts) else -1
        if number < 0 or self._steps < self._steps_before(number):
            return self.chosen
        self._steps = 0
        self._trials += 1
        return self._counts[number]

    def _steps_before(self, number: int) -> float:
        """How many steps lie between two trials: the fewer, the less a trial costs."""
        delay = (self._medians[number] or 2 * self.seconds) - self.seconds
        if delay > _LONGEST_DELAY_SECONDS:
            return inf
        return max(delay / (_TRIAL_COST * self.seconds) if self.seconds else 0, _LEAST_STEPS_BETWEEN_TRIALS)

    def _best(self, seconds: Sequence[float]) -> int:
        known = [number for number, time in enumerate(seconds) if time]
        best = known[0]
        for number in known[1:]:
            least_share = _LEAST_SHARE / 2 if self._counts[number] == self.chosen else _LEAST_SHARE
            most_saved = 1 - self._counts[best] / self._counts[number]
            if seconds[number] < seconds[best] * (1 - least_share * most_saved):
                best = number
        return best
