"""Templates: the meaning of their marks, and their errors."""

from collections import Counter

import pytest

from trainer.demo.grammar import StableRandom, TemplateError, expand, parse

CAST = {
    "hero": {"name": "Mia", "he": "she", "his": "her"},
    "friend": {"name": "Tom", "he": "he", "his": "his", "a": "an old owl"},
}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("No marks.", "No marks."),
        ("", ""),
        ("{hero} met {friend}.", "Mia met Tom."),
        ("{He} took {his} hat.", "She took her hat."),
        ("{friend.He} took {friend.his} hat.", "He took his hat."),
        ("{Friend.a} and {friend.A} and {friend.a}.", "An old owl and An old owl and an old owl."),
        ("{greeting}", "Hello, Mia!"),
    ],
)
def test_slots_and_phrases(text, expanded):
    phrases = {"greeting": "{hello}, {hero}!", "hello": "Hello"}
    assert expand(parse(text, phrases, CAST), CAST, StableRandom(0)) == expanded


def test_options_are_equally_likely():
    template, rng = parse("(a|b|(c|d)|)", {}, CAST), StableRandom(0)
    counts = Counter(expand(template, CAST, rng) for _ in range(8000))
    expected = {"a": 2000, "b": 2000, "c": 1000, "d": 1000, "": 2000}
    assert counts.keys() == expected.keys()
    # Five standard deviations of a binomial.
    assert all(abs(counts[text] - expected[text]) < 5 * 2000**0.5 for text in expected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("one (two", r"unmatched '\('"),
        ("one) two", r"unmatched '\)'"),
        ("one | two", "outside"),
        ("one } two", "unmatched brace"),
        ("one { two", "unmatched brace"),
        ("{}", "unmatched brace"),
        ("{toy} two", r"\{toy\} names neither a phrase nor a role; the roles are hero, friend"),
        ("{Toy.a} two", r"\{Toy.a\} names neither"),
        ("{loop}", "names neither"),
    ],
)
def test_syntax_errors_are_quoted(text, fault):
    with pytest.raises(TemplateError, match=fault):
        parse(text, {"loop": "{loop}"}, CAST)
