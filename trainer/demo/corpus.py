"""The embedded corpus: short stories for children from a seeded grammar, in any number."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.demo.cast import draw_cast
from trainer.demo.grammar import StableRandom, expand
from trainer.demo.plots import load_plots

SEPARATOR = "<|endoftext|>"
DEFAULT_SEED = 1
DEFAULT_SIZE_BYTES = 15_000_000


def stories(seed: int = DEFAULT_SEED) -> Iterator[str]:
    """Generate stories without end: the same ones for a seed, on every Python version.

    Yields:
        ASCII text: paragraphs with a blank line between them, without a newline after the last.
    """
    rng = StableRandom(seed)
    plots = load_plots()
    while True:
        plot = rng.choice(plots)
        template = rng.choice(plot.templates)
        yield expand(template, draw_cast(plot.roles, rng), rng)


def write_corpus(
    path: str | os.PathLike[str],
    *,
    seed: int = DEFAULT_SEED,
    size_bytes: int = DEFAULT_SIZE_BYTES,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write stories to a file until it has `size_bytes`, each followed by a line with the separator.

    The file appears under its name only when it is complete.

    Args:
        path: The file, which is replaced if it exists; its folder must exist.
        seed: Of the stories.
        size_bytes: The story that reaches this size is the last.
        progress: Called after every thousand stories and at the end with the number of bytes written so far.

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
