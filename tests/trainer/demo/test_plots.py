"""The plots of the data file: what their slots name, and what is drawn for it."""

import pytest

from trainer.demo.cast import draw_cast
from trainer.demo.grammar import Choice, Slot, StableRandom
from trainer.demo.plots import load_plots

PLOTS = load_plots()


def slots(template):
    for part in template:
        match part:
            case Slot():
                yield part
            case Choice(options):
                for option in options:
                    yield from slots(option)


@pytest.mark.parametrize("plot", PLOTS)
def test_entities_have_the_features_that_slots_name(plot):
    for template in plot.templates:
        cast = draw_cast(plot.roles, StableRandom(0))
        named = {(slot.role, slot.feature) for slot in slots(template)}
        assert {pair for pair in named if pair[1] not in cast[pair[0]]} == set()
        assert {role for role, _ in named} == set(plot.roles)


def test_no_two_entities_share_a_name_or_a_kind():
    rng = StableRandom(0)
    for plot in PLOTS:
        for _ in range(200):
            cast = draw_cast(plot.roles, rng).values()
            assert len({entity["kind"] for entity in cast}) == len({entity["name"] for entity in cast}) == len(cast)
