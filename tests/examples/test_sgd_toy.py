"""The study of SGD on a quadratic, against its closed form."""

import itertools
import math

import pytest

from examples.sgd_toy import RATES, losses, main, verdict
from tests.docs.pages import DOCS


def closed_form(rate: float, steps: int) -> float:
    """The last loss as a share of the first: each step multiplies the weights by 1 - rate / (50 sqrt(t + 1))."""
    return math.prod((1 - rate / (50 * math.sqrt(step + 1))) ** 2 for step in range(steps))


@pytest.mark.parametrize("steps", [1, 10, 100])
@pytest.mark.parametrize("rate", RATES)
def test_each_loss_is_that_of_the_closed_form(rate: float, steps: int) -> None:
    found = losses(rate, steps)
    assert len(found) == steps + 1
    for done, loss in enumerate(found):
        assert loss / found[0] == pytest.approx(closed_form(rate, done), rel=1e-9, abs=1e-25)


def test_what_the_assignment_asks_for() -> None:
    """Ten steps at 1, 10, 100 and 1,000: decays, faster, fastest, diverges."""
    slow, faster, fastest, diverging = (losses(rate, 10) for rate in RATES)
    assert slow[0] == faster[0] == fastest[0] == diverging[0]
    assert fastest[-1] < faster[-1] < slow[-1] < slow[0] < diverging[-1]
    assert all(after < before for before, after in itertools.pairwise(slow))
    # The first step at 100 only mirrors the weights, and the fourth is the last.
    assert fastest[1] == pytest.approx(fastest[0], rel=1e-12)
    assert fastest[4] < 1e-30 * fastest[0] < fastest[3]


def test_at_1000_it_diverges_for_a_hundred_steps_only() -> None:
    found = losses(1_000.0, 400)
    assert all(after > before for before, after in itertools.pairwise(found[:100]))
    assert math.log10(max(found) / found[0]) == pytest.approx(65.4, abs=0.05)
    assert all(after < before for before, after in itertools.pairwise(found[100:201]))
    assert found[-1] < 1e-30


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "10", "100"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("After")] == ["After 10 steps:", "After 100 steps:"]
    for line, words in zip(lines[1:5], ("82 %", "12 %", "reaches the minimum", "10^18 times"), strict=True):
        assert words in line


def test_the_page_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "10"])
    assert capsys.readouterr().out in (DOCS / "reference" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--rates", "-1"], ["--rates", "nan"], ["--steps", "x"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error:" in capsys.readouterr().err


def test_numbers_beyond_float64() -> None:
    assert verdict(1.0, math.inf).startswith("diverges")
    assert verdict(1.0, math.nan).startswith("diverges")
    main(["--steps", "10", "--rates", "1e300"])
