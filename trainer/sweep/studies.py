"""The classic experiments, as data: what each varies, and what it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cyclopts import App, ArgumentCollection

from trainer.settings.file import SettingsFile
from trainer.settings.train import TrainSettings

StudyName = Literal["learning-rate", "batch-size", "vocab-size", "ablations"]
Hold = Literal["steps", "tokens"]
RateScaling = Literal["none", "sqrt", "linear"]
Changes = dict[str, Any]

VOCAB_SIZE = "vocab_size"
BATCH_SIZE = "total_batch_size"
RATE = "learning_rate"
# Clipping and the decay to nearly 0 bring even 3,000 times a good rate back; the last of these diverges.
_RATE_FACTORS = (0.1, 0.3, 1, 3, 10, 100, 10_000)
_BATCH_FACTORS = (0.25, 0.5, 1, 2, 4)
_VOCAB_SIZES = (1_024, 2_048, 4_096, 8_192, 16_384)


@dataclass(frozen=True)
class Study:
    """A classic experiment.

    Attributes:
        axis: A setting and the values it takes, from the base settings; --grid replaces them.
        variants: Rows of changes that are run beside each other; the empty one is the baseline.
        defaults: Values of settings that the user leaves open.
        hold: What every run has as much of as the base settings.
    """

    axis: Callable[[TrainSettings], tuple[str, list[Any]]] | None = None
    variants: tuple[Changes, ...] = ({},)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hold: Hold = "steps"

    @property
    def switches(self) -> frozenset[str]:
        """The settings in which the variants differ."""
        return frozenset(name for variant in self.variants for name in variant)


def _rates(base: TrainSettings) -> tuple[str, list[Any]]:
    return RATE, [float(f"{base.optimization.learning_rate * f:.3g}") for f in _RATE_FACTORS]


def _batches(base: TrainSettings) -> tuple[str, list[Any]]:
    return BATCH_SIZE, sorted({max(1, int(base.total_batch_size * factor)) for factor in _BATCH_FACTORS})


def _vocabularies(_base: TrainSettings) -> tuple[str, list[Any]]:
    return VOCAB_SIZE, list(_VOCAB_SIZES)


STUDIES: Mapping[StudyName, Study] = {
    "learning-rate": Study(axis=_rates),
    "batch-size": Study(axis=_batches, hold="tokens"),
    "vocab-size": Study(axis=_vocabularies),
    # Those of Stanford's CS336, assignment 1. Both defaults would hide what a norm or a position encoding gives.
    "ablations": Study(
        variants=({}, {"norm": "post"}, {"norm": "none"}, {"position": "none"}, {"activation": "silu"}),
        defaults={"qk_norm": False, "initialization": "normal"},
    ),
}


class StudyDefaults:
    """A cyclopts config source that fills what is still open, after a preset, with the defaults of the study named."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill the arguments that are still open (cyclopts calls this)."""
        for argument in arguments:
            if argument.name == "--experiment" and argument.tokens:
                name = argument.tokens[0].value
                study = next((study for own, study in STUDIES.items() if own == name), Study())
                SettingsFile(study.defaults, f"sweep {name}")(app, commands, arguments)
