"""The loss curves of a model's card as SVG, written directly, since importing matplotlib takes a second.

Its colors follow the reader's light or dark scheme, as those of Hugging Face's and GitHub's pages do.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 704, 36, 296  # of the plot
_FIRST_SHARE = 0.05  # of the steps: their losses, high as they are, do not decide the scale
_MEAN_SHARE = 20  # the smoothed curve is a mean over this fraction of the points
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#59636e}.grid{stroke:#d1d9e0;stroke-width:.6}"
    "polyline{fill:none;stroke-linejoin:round;stroke-linecap:round;stroke-width:1.8}.training{stroke:#0b5fc0}.validation{stroke:#b5460f}"
    ".single{stroke-width:.8;opacity:.35}@media(prefers-color-scheme:dark){text{fill:#9198a1}.grid{stroke:#3d444d}"
    ".training{stroke:#78b4ff}.validation{stroke:#ff9d66}}"
)

Points = Mapping[int, float]
"""Values by step, in ascending order."""


@dataclass(frozen=True)
class _Axis:
    """From values to places on the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int) -> Iterator[float]:
        """Round numbers at equal distances, at most so many."""
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        distance = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power > least)
        for number in range(math.ceil(self.low / distance), math.floor(self.high / distance) + 1):
            yield number * distance


def points(curves: Mapping[str, Any], name: str) -> dict[int, float]:
    """The finite values of one of the curves of `training.json`."""
    curve = curves.get(name, {"steps": [], "values": []})
    return {step: value for step, value in zip(curve["steps"], curve["values"], strict=True) if value is not None}


def loss_curves(curves: Mapping[str, Any]) -> str | None:
    """The losses of training and validation by step, as an SVG document; None for fewer than two steps."""
    training, validation = points(curves, "loss"), points(curves, "validation_loss")
    steps = sorted(training.keys() | validation.keys())
    if len(steps) < 2:
        return None
    mean = _running_mean(training)
    x = _Axis(0, steps[-1], _LEFT, _RIGHT)
    y = _Axis(*_limits([*mean.items(), *validation.items()], steps[-1] * _FIRST_SHARE), _BOTTOM, _TOP)
    drawn = [(training, "training single"), (mean, "training"), (validation, "validation")]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">',
            f"<title>Loss by step</title><style>{_STYLE}</style>",
            *_axes(x, y),
            f'<svg x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}" overflow="hidden" '
            f'viewBox="{_LEFT} {_TOP} {_RIGHT - _LEFT} {_BOTTOM - _TOP}">',
            *(_line(values, x, y, kind) for values, kind in drawn if values),
            "</svg>",
            *_legend([kind for values, kind in drawn[1:] if values]),
            "</svg>\n",
        ]
    )


def _running_mean(values: Points) -> dict[int, float]:
    """The mean of the points around each, at the ends of fewer."""
    steps, numbers = [*values], [*values.values()]
    reach = len(numbers) // _MEAN_SHARE // 2
    around = ((step, numbers[max(0, i - reach) : i + reach + 1]) for i, step in enumerate(steps))
    return {step: sum(some) / len(some) for step, some in around}


def _limits(curves: Sequence[tuple[int, float]], first: float) -> tuple[float, float]:
    """The range of the losses, without those of the first steps."""
    values = [value for step, value in curves if step > first]
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.1 * abs(high) or 0.1
    return low - room, high + room


def _axes(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in y.ticks(6):
        place = f"{y(value):.1f}"
        yield f'<path class="grid" d="M{_LEFT} {place}H{_RIGHT}"/>'
        yield f'<text x="{_LEFT - 8}" y="{place}" dy=".35em" text-anchor="end">{value:.6g}</text>'
    for value in x.ticks(8):
        yield f'<text x="{x(value):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{value:,.6g}</text>'
    yield f'<text x="{_RIGHT}" y="{_BOTTOM + 36}" text-anchor="end">step</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 16}">nats per token</text>'


def _line(values: Points, x: _Axis, y: _Axis, kind: str) -> str:
    places = [f"{x(step):.1f},{y(value):.1f}" for step, value in values.items()]
    if len(places) == 1:
        places *= 2  # a dot
    return f'<polyline class="{kind}" points="{" ".join(places)}"/>'


def _legend(kinds: Sequence[str]) -> Iterator[str]:
    for number, kind in enumerate(reversed(kinds)):
        right = _RIGHT - 110 * number
        yield f'<polyline class="{kind}" points="{right - 90},{_TOP - 20} {right - 66},{_TOP - 20}"/>'
        yield f'<text x="{right - 60}" y="{_TOP - 16}">{kind}</text>'
