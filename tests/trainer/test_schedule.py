import pytest

from trainer.schedule import learning_rate


def rates(steps: range, **settings: float) -> list[float]:
    return [learning_rate(step, **{"peak": 1.0, "min_ratio": 0.1, **settings}) for step in steps]  # type: ignore[arg-type]


def test_the_curve_is_nanogpts() -> None:
    """B76: the values of nanoGPT's rule after its +1 fix, from the case's own table."""
    table = [0.2, 0.4, 0.6, 0.8, 1, 0.9397, 0.775, 0.55, 0.325, 0.1603, 0.1, 0.1, 0.1]
    assert rates(range(13), warmup_steps=4, max_steps=10) == pytest.approx(table, abs=5e-5)


def test_no_warm_up_starts_at_the_peak() -> None:
    """B76."""
    assert rates(range(1), warmup_steps=0, max_steps=10) == [1.0]


def test_warm_up_as_long_as_the_run_only_grows() -> None:
    """B76: no division by zero where nothing is left to decay over."""
    assert rates(range(11), warmup_steps=10, max_steps=10) == pytest.approx([i / 11 for i in range(1, 11)] + [0.1])


@pytest.mark.parametrize("warmup_steps", [0, 1, 100])
def test_a_single_step_does_not_have_a_rate_of_zero(warmup_steps: int) -> None:
    """B76."""
    assert 0 < rates(range(1), warmup_steps=warmup_steps, max_steps=1)[0] <= 1


def test_a_ratio_of_zero_ends_just_above_zero() -> None:
    last = rates(range(9, 10), warmup_steps=0, max_steps=10, min_ratio=0.0)[0]
    assert last == pytest.approx(0.02447, abs=1e-5)  # (1 + cos(0.9 pi)) / 2
