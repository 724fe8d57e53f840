import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.stopping import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    chunks = [matcher.feed(piece) for piece in pieces]
    return [*chunks, matcher.finish()], matcher.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], "", "DEFGHIJ"),  # B29
        (["\n"], [" a;\n", "b"], " a;", "\n"),  # B29
        (["<|im_end|>"], ["<|", "im", "_end|>"], "", "<|im_end|>"),  # B29
        (["DEFGHIJ"], ["DEF", "G", "HI"], "DEFGHI", None),
        (["aab"], ["aaa", "b"], "a", "aab"),  # a match may begin inside of what was held back
        (["abc", "b"], ["ab", "c"], "a", "b"),  # the first to be complete
        (["b", "ab"], ["a", "b"], "", "ab"),  # on the same character the longest
        (["\0"], ["a", "\0b"], "a", "\0"),  # B25
    ],
)
def test_cuts_at_the_first_complete_stop_string(
    stops: list[str], pieces: list[str], text: str, matched: str | None
) -> None:
    chunks, found = run(stops, pieces)
    assert ("".join(chunks), found) == (text, matched)


def slow_cut(stops: list[str], text: str) -> tuple[str, str | None]:
    """The specification: read character by character until some stop string is at the end."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), st.lists(st.text("abc", max_size=4)))
def test_equals_the_specification_wherever_the_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    chunks, matched = run(stops, pieces)
    assert ("".join(chunks), matched) == slow_cut(stops, "".join(pieces))


def test_holds_back_only_what_may_become_a_stop_string() -> None:  # B38
    matcher = StopMatcher(["ZZZZZZZZZZ"])
    assert [matcher.feed(piece) for piece in ["The", " fox", "Z", "Zo", "o"]] == ["The", " fox", "", "ZZo", "o"]


def test_long_stop_strings_cost_little() -> None:  # B59
    matcher = StopMatcher([letter * 256 for letter in "abcd"])
    started = time.process_time()
    for _ in range(10_000):
        matcher.feed("word ")
    assert time.process_time() - started < 1.0
