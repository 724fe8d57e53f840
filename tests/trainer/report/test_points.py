"""Points of curves: what a page has after many additions is what it would get at once."""

import math
import random

import numpy as np
import pytest

from trainer.report import points
from trainer.report.points import Sent, new_points, points_of
from trainer.runs.metrics_table import Column, Curve


class Page:
    """A page that holds the points of one column."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.values: list[float | None] = []
        self.sent = Sent()

    def follow(self, column: Column) -> int:
        """Take what is new; how many points that were."""
        new, self.sent = new_points(column, self.sent)
        column.num_unchanged = len(column)
        if new is None:
            return 0
        assert new["from"] <= len(self.steps)
        self.steps[new["from"] :], self.values[new["from"] :] = new["steps"], new["values"]
        return len(new["steps"])


def test_what_is_added_equals_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing, going back, values replaced at the same step, steps out of order; groups of 1 to 16."""
    monkeypatch.setattr(points, "FIRST", 10)
    monkeypatch.setattr(points, "MOST_GROUPS", 8)
    draw, sizes = random.Random(3), set()
    for _ in range(60):
        column, page, step = Column(), Page(), 0
        for _ in range(40):
            for _ in range(draw.randrange(6)):
                step = max(0, step + draw.choice([0, 1, 1, 1, 5, -3 if draw.random() < 0.02 else 1]))
                column.append(step, draw.choice([draw.random(), draw.random(), math.nan]))
            if draw.random() < 0.1:
                column.cut(draw.randrange(len(column) + 1))
                step = int(column.steps[-1]) if column.steps else 0
            page.follow(column)
            whole = points_of(column.curve())
            assert (page.steps, page.values) == (whole["steps"], whole["values"])
            sizes.add(page.sent.group)
    assert sizes == {1, 2, 4, 8, 16}


def test_one_more_record_of_a_long_run_is_one_point() -> None:
    column, page = Column(), Page()
    for step in range(1, 200_001):
        column.append(step, 1.0)
    assert page.follow(column) <= points.FIRST + points.MOST_GROUPS
    for step in range(200_001, 200_050):
        column.append(step, 1.0)
        assert page.follow(column) <= 2
    assert page.follow(column) == 0


def test_a_group_is_a_mean_and_a_gap_stays_one() -> None:
    values = np.ones(points.FIRST + 2 * points.MOST_GROUPS)
    values[points.FIRST : points.FIRST + 4] = [3.0, 5.0, math.nan, math.nan]
    values[7] = math.nan
    sent = points_of(Curve(np.arange(1.0, len(values) + 1), values))
    assert sent["values"][:8] == [*[1] * 7, None]
    assert sent["values"][points.FIRST : points.FIRST + 3] == [4, None, 1]
    assert sent["steps"][points.FIRST : points.FIRST + 2] == [points.FIRST + 1.5, points.FIRST + 3.5]
    assert len(sent["steps"]) == points.FIRST + points.MOST_GROUPS


def test_numbers_are_short() -> None:
    sent = points_of(Curve(np.array([1.0, 12_345_678.0]), np.array([1 / 3, 1e90])))
    assert (sent["steps"], sent["values"]) == ([1, 12_345_678], [0.3333333, 1e90])
