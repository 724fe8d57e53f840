import pytest

from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.vocabulary import AddedToken
from tests.growth import growth

MATCHER = AddedTokenMatcher(
    [
        AddedToken(1, "<m>", rstrip=True),
        AddedToken(2, "<n>", lstrip=True),
        AddedToken(3, "<o>", lstrip=True, rstrip=True, normalized=True),
    ]
)


@pytest.mark.parametrize("unit", ["<m> ", " <n>", " <o> ", "<m>" + " " * 60])
def test_time_grows_with_the_length_of_the_text(unit: str) -> None:
    """Eight times the text takes some eight times as long, not 64 times."""

    def split(length: int) -> None:
        text = unit * (length // len(unit))
        assert sum(end - start for _, start, end in positions(text)) == len(text)

    assert growth(split, 1 << 15, 1 << 18) < 24


def positions(text: str) -> list[tuple[object, int, int]]:
    return [(token, start, start + len(part)) for start, part, token in MATCHER.split(text)]


@pytest.mark.parametrize("content", ["ab", "abc", "b"])
def test_a_text_is_undecided_from_where_a_token_may_begin(content: str) -> None:
    matcher = AddedTokenMatcher([AddedToken(0, content), AddedToken(1, "xay"), AddedToken(2, "xaz")])
    for text in ("", "a", "xa", "x", "ab", "abx", "abxa", "abxay", "bab", "c"):
        expected = next(
            (i for i in range(len(text)) for t in (content, "xay", "xaz") if t.startswith(text[i:]) and t != text[i:]),
            len(text),
        )
        assert matcher.undecided_from(text) == expected, text
