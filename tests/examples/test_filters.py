"""The example filters, on real prose and on what they are there to refuse."""

import pytest

from examples.filters import english, gopher_quality

PROSE = "The people of the town have to be careful with that old bridge, and they know it. " * 4


def test_prose_stays() -> None:
    assert gopher_quality(PROSE) is True
    assert english(PROSE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "fewer than 50"),
        ("The end of it.", "fewer than 50"),
        ("a b " * 40, "mean word length"),
        (PROSE + "# " * 20, "#"),
        (PROSE + "more… " * 20, "ellipsis for ten"),
        ("\n".join(f"- {line}" for line in PROSE.split(". ")), "bullet"),
        ("\n".join(f"{line}..." for line in PROSE.split(", ")), "end with an ellipsis"),
        (PROSE + "1234 " * 40, "have a letter"),
        ("Nachts scheint der Mond hell über alle Dächer. " * 10, "common English"),
    ],
)
def test_each_rule(text: str, reason: str) -> None:
    assert reason in str(gopher_quality(text))


def test_german_is_not_english() -> None:
    assert not english("Nachts scheint der Mond hell über alle Dächer. " * 10)
