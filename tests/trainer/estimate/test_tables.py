"""Numbers as people read them."""

import pytest

from trainer.estimate.tables import _duration, exact


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1,000 (1.00 K)"),
        (2_127_057_600, "2,127,057,600 (2.13 B)"),
        (4_513_336_524_800, "4,513,336,524,800 (4.51 T)"),
        (149_522_795_724_800, "149,522,795,724,800 (149.52 T)"),
        (10**21, "1,000,000,000,000,000,000,000 (1000.00 E)"),
    ],
)
def test_exact_numbers_stand_before_rounded_ones(value: int, text: str) -> None:
    assert exact(value) == text


def test_bytes_have_their_unit() -> None:
    assert exact(85_899_345_920, "B") == "85,899,345,920 (85.90 GB)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0:00:00"),
        (3_723, "1:02:03"),
        (86_400 * 12.34, "12.3 days"),
        (568_823_059.8, "6,583.6 days (18.0 years)"),
        (1e30, "3.2e+22 years"),
    ],
)
def test_long_times_are_days_and_years(seconds: float, text: str) -> None:
    assert _duration(seconds) == text
