import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe.encoding import added_tokens
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


@settings(max_examples=500)
@given(
    st.sets(st.text("<|ab>", min_size=1, max_size=9), min_size=1, max_size=12),
    st.lists(st.text("<|ab>", max_size=4), max_size=12),
    st.integers(1, 20),
)
def test_the_leftmost_and_of_these_the_longest_is_found(contents: set[str], between: list[str], block: int) -> None:
    """For any block size and any shared prefixes, compared with a search at every position."""
    matcher = AddedTokenMatcher(AddedToken(number, content) for number, content in enumerate(sorted(contents)))
    text = "".join(part + content for part, content in zip(between, sorted(contents), strict=False))
    expected, place = [], 0
    while place < len(text):
        found = max((content for content in contents if text.startswith(content, place)), key=len, default="")
        if found:
            expected.append((place, found))
        place += len(found) or 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(added_tokens, "_BLOCK", block)
        assert [(match.start, match.token.content) for match in matcher.find(text)] == expected


def test_many_tokens_that_are_prefixes_of_each_other() -> None:
    """The regular expression is not nested as deeply as the tokens are long."""
    contents = ["a" * length for length in range(1, 1001)]
    matcher = AddedTokenMatcher(AddedToken(number, content) for number, content in enumerate(contents))
    assert [match.end for match in matcher.find("a" * 900 + " " + "a" * 1001)] == [900, 1901, 1902]


def test_long_text_is_not_searched_in_one_call() -> None:
    """The GIL is held for the whole call, so one long call would block the event loop of a service."""

    class Noting:
        """An expression that finds nothing."""

        def __init__(self) -> None:
            self.regions: list[tuple[int, int]] = []

        def finditer(self, _: str, start: int, end: int) -> Iterator[re.Match[str]]:
            self.regions.append((start, end))
            return iter(())

    matcher, pattern = AddedTokenMatcher([AddedToken(0, "<longer>")]), Noting()
    vars(matcher._passes[0])["_pattern"] = pattern
    assert [*matcher.find("<" * 1_000_000)] == []
    starts, ends = zip(*pattern.regions, strict=True)
    assert max(end - start for start, end in pattern.regions) < added_tokens._BLOCK + len("<longer>")
    assert (starts[0], ends[-1]) == (0, 1_000_000)
    assert all(start <= end - len("<longer>") + 1 for start, end in zip(starts[1:], ends, strict=False))
