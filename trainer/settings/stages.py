"""Batch and context schedules: how many windows of which length each step has.

A schedule is a list of stages, VALUE:STEP or FROM-TO:STEP, each of which lasts until STEP optimizer steps are done;
after the last one, the value is the full one. FROM-TO grows in a straight line.
"""

import bisect
import re
from dataclasses import dataclass
from functools import lru_cache

from trainer.errors import UsageError

CONTEXT_MULTIPLE = 8
"""What a growing context is rounded down to a multiple of, as GPUs are faster then (Li et al. 2022, section 4)."""

_STAGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?:(\d{1,18})", re.ASCII)
_MOST_STAGES = 10_000

Plateau = tuple[int, int]
"""A value, and the number of steps done where it ends."""


@dataclass(frozen=True)
class Stage:
    """Consecutive steps of one shape.

    Attributes:
        first: The first of them, from 0.
        windows: Windows of a step.
        length: Tokens of a window.
    """

    first: int
    windows: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.windows * self.length


@dataclass(frozen=True)
class StepShapes:
    """The shape of every step of a run.

    Attributes:
        stages: In order, the first from step 0 on; the last has no end.
    """

    stages: tuple[Stage, ...]

    def index(self, step: int) -> int:
        """Which stage a step, from 0, is in."""
        return bisect.bisect_right(self.stages, step, key=lambda stage: stage.first) - 1

    def tokens(self, steps: int) -> int:
        """Tokens of the first steps."""
        ends = [*(stage.first for stage in self.stages[1:]), steps]
        return sum(
            max(0, min(end, steps) - stage.first) * stage.tokens for stage, end in zip(self.stages, ends, strict=True)
        )

    def divide(self, tokens: int) -> list[tuple[Stage, float]]:
        """In how many steps of each stage the first tokens of a run are; stages that begin later are left out."""
        parts: list[tuple[Stage, float]] = []
        for stage, following in zip(self.stages, [*self.stages[1:], None], strict=True):
            part = tokens if following is None else min(tokens, (following.first - stage.first) * stage.tokens)
            parts.append((stage, part / stage.tokens))
            tokens -= part
        return [part for part in parts if part[1]]

    def steps(self, tokens: int) -> float:
        """In how many steps the first tokens of a run are."""
        return sum(steps for _, steps in self.divide(tokens))


@lru_cache(maxsize=256)
def parse_schedule(text: str, *, name: str, multiple: int = 1) -> tuple[Plateau, ...]:
    """The plateaus of a schedule; none for an empty one.

    Args:
        text: The schedule.
        name: Of the option, for messages.
        multiple: What growing values are rounded down to a multiple of, but not below the first.

    Raises:
        UsageError: not of the form above, a value of 0, or steps that do not grow.
    """
    plateaus: list[Plateau] = []
    begin = 0
    for part in text.split(",") if text else ():
        match = _STAGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"{name} expects VALUE:STEP or FROM-TO:STEP, with commas between several, such as 64:500,128:1000; "
                f"got {text!r}"
            )
        low, end = int(match[1]), int(match[3])
        high = int(match[2] or low)
        if not 1 <= low <= high:
            raise UsageError(f"{name}: values must be at least 1 and not fall within a stage; got {part.strip()!r}")
        if end <= begin:
            raise UsageError(f"{name}: the steps where stages end must grow from 1 on; got {end} after {begin}")
        plateaus += _grow(low, high, begin, end, multiple=multiple, name=name)
        begin = end
    return tuple(plateaus)


def _grow(low: int, high: int, begin: int, end: int, *, multiple: int, name: str) -> list[Plateau]:
    """Step s has low + (high - low) * (s - begin) / (end - begin), rounded down."""
    first = low // multiple * multiple + multiple  # the first value above `low`
    values = range(first, high, multiple)
    if min(len(values), end - begin) > _MOST_STAGES:
        raise UsageError(f"{name}: {low}-{high} has more than {_MOST_STAGES} different values; give fewer steps of it")
    span = end - begin
    if span < len(values):  # not every value has a step of its own
        raw = ((low + (high - low) * step // span) // multiple * multiple for step in range(span))
        return [(max(low, value), begin + step + 1) for step, value in enumerate(raw)]
    starts = [begin, *(begin - (low - value) * span // (high - low) for value in values)]
    return list(zip((low, *values), [*starts[1:], end], strict=True))


@lru_cache(maxsize=256)
def step_shapes(batch_schedule: str, context_schedule: str, windows: int, length: int) -> StepShapes:
    """The shapes of a run's steps.

    Args:
        batch_schedule: Windows of a step before there are `windows`.
        context_schedule: Tokens of a window before there are `length`.
        windows: In the end.
        length: In the end.

    Raises:
        UsageError: see `parse_schedule`; or a context is longer than the model's.
    """
    batches = parse_schedule(batch_schedule, name="--batch-schedule")
    contexts = parse_schedule(context_schedule, name="--context-schedule", multiple=CONTEXT_MULTIPLE)
    longest = max((value for value, _ in contexts), default=0)
    if longest > length:
        raise UsageError(f"--context-schedule has a context of {longest}, but --context-length is {length}")
    starts = sorted({0, *(end for _, end in batches), *(end for _, end in contexts)})
    return StepShapes(tuple(Stage(at, _value(batches, at, windows), _value(contexts, at, length)) for at in starts))


def _value(plateaus: tuple[Plateau, ...], step: int, full: int) -> int:
    place = bisect.bisect_right(plateaus, step, key=lambda plateau: plateau[1])
    return plateaus[place][0] if place < len(plateaus) else full
