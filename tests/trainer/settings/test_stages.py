"""Batch and context schedules as text, and the shapes of steps that follow from them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import UsageError
from trainer.settings.experiments import ExperimentSettings
from trainer.settings.stages import CONTEXT_MULTIPLE, Stage, StepShapes, parse_schedule, step_shapes
from trainer.settings.train import TrainSettings


def values(text: str, steps: int, full: int, multiple: int = 1) -> list[int]:
    """The value of each of the first steps, from the plateaus."""
    plateaus = parse_schedule(text, name="x", multiple=multiple)
    return [next((value for value, end in plateaus if step < end), full) for step in range(steps)]


def test_stages_last_until_their_step() -> None:
    assert values("2:3, 4:5", 7, 8) == [2, 2, 2, 4, 4, 8, 8]
    assert values("", 2, 8) == [8, 8]


def test_a_growing_stage_is_a_straight_line() -> None:
    assert values("1-5:8", 10, 16) == [1, 1, 2, 2, 3, 3, 4, 4, 16, 16]
    assert values("1-100:4", 5, 200) == [1, 25, 50, 75, 200]
    assert values("2:2,2-6:6", 8, 8) == [2, 2, 2, 3, 4, 5, 8, 8]


@given(
    low=st.integers(1, 300), more=st.integers(0, 600), begin=st.integers(0, 40), span=st.integers(1, 500),
    multiple=st.sampled_from([1, CONTEXT_MULTIPLE]),
)  # fmt: skip
def test_a_growing_stage_follows_the_papers_pacing(low: int, more: int, begin: int, span: int, multiple: int) -> None:
    """Li et al. 2022, section 4: start + (end - start) * min(t / T, 1), down to a multiple; step by step."""
    high, first = low + more, f"{low}:{begin}," if begin else ""
    expected = [low] * begin
    for t in range(span):
        raw = low + math.floor((high - low) * t / span)
        expected.append(max(low, raw - raw % multiple))
    found = values(f"{first}{low}-{high}:{begin + span}", begin + span + 1, 10_000, multiple)
    assert found == [*expected, 10_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "--batch-schedule expects VALUE:STEP or FROM-TO:STEP.*got '8'"),
        ("8:", "expects"),
        ("8:5,", "expects"),
        (":5", "expects"),
        ("8:-5", "expects"),
        ("1.5:5", "expects"),
        ("8:5;4:9", "expects"),
        ("٣:5", "expects"),
        ("1" * 40 + ":5", "expects"),
        ("0:5", "values must be at least 1"),
        ("0-8:5", "values must be at least 1"),
        ("8-4:5", "not fall within a stage; got '8-4:5'"),
        ("8:0", "must grow from 1 on; got 0 after 0"),
        ("8:5,9:5", "must grow from 1 on; got 5 after 5"),
        ("8:5,9:4", "got 4 after 5"),
        ("1-1000000000:1000000000", "more than 10000 different values"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step_shapes(text, "", 8, 64)


def test_shapes_join_both_schedules() -> None:
    shapes = step_shapes("2:4,4:6", "16-32:3", 8, 64)
    assert shapes.stages == (
        *(Stage(0, 2, 16), Stage(2, 2, 24), Stage(3, 2, 64), Stage(4, 4, 64), Stage(6, 8, 64)),
    )  # fmt: skip
    at = [shapes.stages[shapes.index(step)] for step in range(8)]
    by_step = [(stage.windows, stage.length) for stage in at]
    assert by_step == [(2, 16), (2, 16), (2, 24), (2, 64), (4, 64), (4, 64), (8, 64), (8, 64)]
    counted = [sum(windows * length for windows, length in by_step[:steps]) for steps in range(9)]
    assert [shapes.tokens(steps) for steps in range(9)] == counted
    assert [shapes.steps(tokens) for tokens in counted] == list(range(9))
    assert shapes.steps(counted[5] + 128) == 5.5


def test_without_schedules_there_is_one_stage() -> None:
    shapes = step_shapes("", "", 8, 64)
    assert shapes == StepShapes((Stage(0, 8, 64),))
    assert shapes.tokens(1000) == 512_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_schedule": "17:5"}, "--context-schedule has a context of 17, but --context-length is 16"),
        ({"context_schedule": "8-17:5"}, "context of 16|context of 17"),
        ({"batch_schedule": "2:10"}, r"ends at step 10, which must be below --max-steps \(10\)"),
        ({"context_schedule": "8:3", "batch_schedule": "2:12"}, "ends at step 12"),
        ({"head_learning_rate": 1e-3}, "--head-learning-rate: the output projection is the embedding; add --no-tie"),
        ({"head_learning_rate": 0.0, "tie_embeddings": False}, "--head-learning-rate must be above 0"),
        ({"embedding_learning_rate": 0.0}, "--embedding-learning-rate must be above 0"),
        ({"embedding_learning_rate": -1.0}, "--embedding-learning-rate must be a finite number of at least 0"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: TrainSettings, change: Callable[..., TrainSettings], options: dict[str, Any], message: str
) -> None:
    if options == {"context_schedule": "8-17:5"}:
        change(settings, **options)  # by multiples of 8, it never has more than 16
        return
    with pytest.raises(UsageError, match=message):
        change(settings, **options)


def test_a_run_without_experiments_has_the_defaults() -> None:
    assert ExperimentSettings() == ExperimentSettings(batch_schedule="", context_schedule="")
