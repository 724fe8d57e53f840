import pytest

from trainer.components.schedule import learning_rate


def rates(steps: range, **settings: float) -> list[float]:
    return [learning_rate(step, **{"peak": 1.0, "min_ratio": 0.1, **settings}) for step in steps]  # type: ignore[arg-type]


def test_the_curve_is_nanogpts() -> None:
    """B76: the values of nanoGPT's rule after its +1 fix, from the case's own table."""
    table = [0.2, 0.4, 0.6, 0.8, 1, 0.9397, 0.775, 0.55, 0.325, 0.1603, 0.1, 0.1, 0.1]
    assert rates(range(13), warmup_steps=4, max_steps=10) == pytest.approx(table, abs=5e-5)


def test_the_curve_from_zero_is_cs336s() -> None:
    """The table of `test_get_lr_cosine_schedule` in assignment 1's tests/test_optimizer.py: t from 0 to 24."""
    table = [
        *(0, 0.14285714285714285, 0.2857142857142857, 0.42857142857142855, 0.5714285714285714, 0.7142857142857143),
        *(0.8571428571428571, 1.0, 0.9887175604818206, 0.9554359905560885, 0.9018241671106134, 0.8305704108364301),
        *(0.7452476826029011, 0.6501344202803414, 0.55, 0.44986557971965857, 0.3547523173970989, 0.26942958916356996),
        *(0.19817583288938662, 0.14456400944391146, 0.11128243951817937, 0.1, 0.1, 0.1, 0.1),
    ]
    assert rates(range(25), warmup_steps=7, max_steps=21, warmup_from_zero=True) == pytest.approx(table, rel=1e-7)
    ours = rates(range(25), warmup_steps=7, max_steps=21)
    assert ours[:7] == pytest.approx([step / 8 for step in range(1, 8)])
    assert ours[7:] == pytest.approx(table[7:], rel=1e-7)


def test_without_a_warm_up_nothing_is_zero() -> None:
    assert rates(range(1), warmup_steps=0, max_steps=10, warmup_from_zero=True) == [1.0]


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


WSD = {"schedule": "wsd", "warmup_steps": 2, "max_steps": 10, "decay_share": 0.4}


def test_wsd_with_a_linear_decay() -> None:
    """By hand: 2 steps up, 4 at the peak, 4 down; the first step of the decay is still at the peak."""
    expected = [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1]
    assert rates(range(12), **WSD, decay_shape="linear") == pytest.approx(expected)


def test_wsd_with_a_decay_by_the_root() -> None:
    """1 - sqrt of the share of the decay that is done: 0, 1/4, 1/2, 3/4 (arXiv 2405.18392, equation 1)."""
    expected = [1, 0.55, 0.1 + 0.9 * (1 - 0.5**0.5), 0.1 + 0.9 * (1 - 0.75**0.5), 0.1]
    assert rates(range(6, 11), **WSD) == pytest.approx(expected)


def test_a_decay_over_everything_begins_after_the_warm_up() -> None:
    expected = [1 / 3, 2 / 3, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]
    assert rates(range(11), **{**WSD, "decay_share": 1.0}, decay_shape="linear", min_ratio=0.0) == expected


@pytest.mark.parametrize(("share", "warmup_steps"), [(0.0, 0), (0.0, 10), (1.0, 10), (0.01, 0)])
def test_wsd_with_no_room_for_a_decay_is_defined(share: float, warmup_steps: int) -> None:
    """B76."""
    rates_ = rates(range(12), schedule="wsd", warmup_steps=warmup_steps, max_steps=10, decay_share=share)
    assert all(0 < rate <= 1 for rate in rates_)
    assert rates_[10:] == [0.1, 0.1]


def test_constant_stays_at_the_peak() -> None:
    assert rates(range(5), schedule="constant", warmup_steps=2, max_steps=3) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])
