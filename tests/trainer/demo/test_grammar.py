"""Templates: what their marks mean, and what is refused."""

from collections import Counter

import pytest

from trainer.demo.cast import cast_roles
from trainer.demo.corpus import shape_templates
from trainer.demo.grammar import Choice, Draw, Slot, TemplateError, expand, parse
from trainer.demo.shapes import SHAPES

CAST = {
    "hero": {"name": "Mia", "he": "she", "his": "her"},
    "friend": {"name": "Tom", "he": "he", "his": "his", "a": "an old owl"},
}


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_slots_and_phrases(text, told):
    phrases = {"greeting": "{hello}, {hero}!", "hello": "Hello"}
    assert expand(parse(text, phrases, CAST), CAST, Draw(0)) == told


def test_each_option_is_told_as_often_as_the_others():
    template, draw = parse("(a|b|(c|d)|)", {}, CAST), Draw(0)
    counts = Counter(expand(template, CAST, draw) for _ in range(8000))
    expected = {"a": 2000, "b": 2000, "c": 1000, "d": 1000, "": 2000}
    assert counts.keys() == expected.keys()
    # Five standard deviations of a binomial.
    assert all(abs(counts[text] - expected[text]) < 5 * 2000**0.5 for text in expected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("one (two", "without"),
        ("one) two", "without"),
        ("one | two", "outside"),
        ("one } two", "stray brace"),
        ("one { two", "stray brace"),
        ("{}", "stray brace"),
        ("{toy} two", r"\{toy\} names neither a phrase nor a role; the roles are hero, friend"),
        ("{Toy.a} two", r"\{Toy.a\} names neither"),
        ("{loop}", "names neither"),
    ],
)
def test_what_cannot_be_read_is_refused(text, fault):
    with pytest.raises(TemplateError, match=fault):
        parse(text, {"loop": "{loop}"}, CAST)


def slots(template):
    for part in template:
        match part:
            case Slot():
                yield part
            case Choice(options):
                for option in options:
                    yield from slots(option)


@pytest.mark.parametrize("shape", SHAPES)
def test_whoever_plays_a_role_has_every_feature_that_is_asked_for(shape):
    for template in shape_templates(shape):
        cast = cast_roles(shape.roles, Draw(0))
        asked = {(slot.role, slot.feature) for slot in slots(template)}
        assert {pair for pair in asked if pair[1] not in cast[pair[0]]} == set()
        assert {role for role, _ in asked} == set(shape.roles)


def test_no_two_of_a_cast_share_a_name_or_a_kind():
    draw = Draw(0)
    for shape in SHAPES:
        for _ in range(200):
            cast = cast_roles(shape.roles, draw).values()
            assert len({entity["kind"] for entity in cast}) == len({entity["name"] for entity in cast}) == len(cast)
