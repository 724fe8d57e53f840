"""What a story shape is."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.demo.cast import Maker


@dataclass(frozen=True)
class Shape:
    """A kind of story.

    Attributes:
        roles: Who is in it; "hero" is always there.
        story: Its text, as blocks parted by blank lines. Each block is a step of the story and lists, after dashes,
            the templates for it, of which one is told. A block that is ``--`` starts a new paragraph.
        turns: Sets of templates that belong together (a trouble and what solves it). One set is drawn for a story,
            which takes them in by name, as in ``{trouble}``.
    """

    roles: Mapping[str, Maker]
    story: str
    turns: tuple[Mapping[str, str], ...] = ({},)
