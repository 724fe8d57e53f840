"""The shapes that stories come in, one file each.

To add a shape: copy the file of the one that is nearest, write your own, and list it here. A template that speaks of
something it does not have is refused when the first story is told, with the template and what is wrong with it.
"""

from trainer.demo.shapes import (
    contest,
    crossing,
    garden,
    honesty,
    learning,
    lost,
    mended,
    newcomer,
    night,
    present,
    rescue,
    shared,
    stuck,
    weather,
)
from trainer.demo.shapes.phrases import PHRASES
from trainer.demo.shapes.shape import Shape

__all__ = ["PHRASES", "SHAPES", "Shape"]

SHAPES = tuple(
    module.SHAPE
    for module in (
        contest,
        crossing,
        garden,
        honesty,
        learning,
        lost,
        mended,
        newcomer,
        night,
        present,
        rescue,
        shared,
        stuck,
        weather,
    )
)
