"""The embedded corpus: short stories for children, told by a seeded grammar, as many as asked for."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from trainer.demo.cast import Maker, cast_roles
from trainer.demo.grammar import Draw, Template, expand, parse
from trainer.demo.shapes import PHRASES, SHAPES, Shape

SEPARATOR = "<|endoftext|>"
DEFAULT_SEED = 1
DEFAULT_SIZE_BYTES = 15_000_000

Told: TypeAlias = "tuple[dict[str, Maker], Template]"


def stories(seed: int = DEFAULT_SEED) -> Iterator[str]:
    """Tell stories without end: the same ones for a seed, on every Python version.

    Yields:
        Paragraphs of plain ASCII, parted by blank lines, without a line end after the last.
    """
    draw = Draw(seed)
    shapes = [[(shape.roles, template) for template in shape_templates(shape)] for shape in SHAPES]
    while True:
        roles, template = draw.one(draw.one(shapes))
        yield expand(template, cast_roles(roles, draw), draw)


def shape_templates(shape: Shape) -> list[Template]:
    """Read a shape: one template for each of its turns."""
    blocks = [re.split(r"\n- ", "\n" + block)[1:] for block in shape.story.strip().split("\n\n")]
    steps = [f"({'|'.join(' '.join(line.split()) for line in lines)})" if lines else "--" for lines in blocks]
    text = " ".join(steps).replace(" -- ", "\n\n")
    return [parse(text, {**PHRASES, **turn}, shape.roles) for turn in shape.turns]


def write_corpus(
    path: str | os.PathLike[str],
    *,
    seed: int = DEFAULT_SEED,
    size_bytes: int = DEFAULT_SIZE_BYTES,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write stories to a file until it holds ``size_bytes``, each followed by a line with the separator.

    The file appears under its name only when it is whole.

    Args:
        path: The file; its folder must exist. A file that is there is replaced.
        seed: Which stories.
        size_bytes: Where to stop: the story that reaches it is the last.
        progress: Called now and then with the number of bytes written so far.

    Returns:
        The number of stories.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    written = 0
    try:
        with unfinished.open("w", encoding="ascii", newline="\n") as file:
            for count, story in enumerate(stories(seed), start=1):
                written += file.write(f"{story}\n{SEPARATOR}\n")
                done = written >= size_bytes
                if progress and (done or count % 1000 == 0):
                    progress(written)
                if done:
                    break
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count
