from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.generation.stop_strings import StopMatcher, StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(StopStrings(stops))
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
    matcher = StopMatcher(StopStrings(["ZZZZZZZZZZ"]))
    assert [matcher.feed(piece) for piece in ["The", " fox", "Z", "Zo", "o"]] == ["The", " fox", "", "ZZo", "o"]


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), st.lists(st.text("abc", max_size=4)))
def test_holds_back_exactly_the_longest_beginning_of_a_stop_string(stops: list[str], pieces: list[str]) -> None:  # B38
    matcher = StopMatcher(StopStrings(stops))
    seen = out = ""
    for piece in pieces:
        seen, out = seen + piece, out + matcher.feed(piece)
        if matcher.matched is not None:
            return
        held = max(length for length in range(6) if any(stop[:length] == seen[len(seen) - length :] for stop in stops))
        assert out == seen[: len(seen) - held]


@pytest.mark.case("D39")
@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=4)),
    st.integers(0, 4),
)
def test_what_becomes_complete_too_early_is_text(stops: list[str], pieces: list[str], early: int) -> None:
    """The first pieces may not end the text; wherever a stop string began, it ends it in a later one."""
    matcher = StopMatcher(StopStrings(stops))
    out, text = "", "".join(pieces)
    for index, piece in enumerate(pieces):
        out += matcher.feed(piece, may_end=index >= early)
        seen = "".join(pieces[: index + 1])
        if matcher.matched is None:
            held = max(
                size for size in range(5) if any(seen.endswith(stop[:size]) for stop in stops if size < len(stop))
            )
            assert out == seen[: len(seen) - held]
    out += matcher.finish()
    for end in range(len("".join(pieces[:early])) + 1, len(text) + 1):
        if complete := [stop for stop in stops if text[:end].endswith(stop)]:
            assert (out, matcher.matched) == (text[: end - len(max(complete, key=len))], max(complete, key=len))
            return
    assert (out, matcher.matched) == (text, None)


def test_a_character_costs_a_step_or_two_however_long_the_stop_strings_are() -> None:  # B59
    stops = StopStrings(["a" * 255 + letter for letter in "bcde"])
    steps = 0

    class Counted(dict[str, int]):
        def get(self, *arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().get(*arguments)

    stops._children = [Counted(children) for children in stops._children]
    matcher = StopMatcher(stops)
    text = ("a" * 254 + "x") * 40
    assert matcher.feed(text) == text
    assert steps <= 2 * len(text)
