"""Option values that `--depth` or `--preset` imply, and training settings from a table."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter

from trainer.errors import UsageError
from trainer.recipes.parent import ParentOptions
from trainer.recipes.scaling import Derived, derive, needs_vocabulary
from trainer.settings.file import SettingsFile
from trainer.settings.train import TrainSettings
from trainer.settings.whole_numbers import refuse_fractions
from trainer.tokens.token_file import TokenFile

logger = logging.getLogger(__name__)


class ScalingOptions:
    """A cyclopts config source that fills the options left open with those derived from `--depth` or `--preset`.

    Args:
        verbose: Log what was derived, and from what.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill the arguments that are still open (cyclopts calls this).

        Raises:
            UsageError: see `derive`; or the size of the vocabulary is not known.
        """
        given = {
            argument.name.removeprefix("--").replace("-", "_"): argument.convert()
            for argument in arguments
            if argument.parse and argument.tokens
        }
        if given.get("init") is not None or (given.get("depth") is None and given.get("preset") is None):
            return  # with both, the settings refuse them
        options = {name for argument in arguments for name in argument.names}
        vocab_size, data_tokens = _sizes(given, options) if needs_vocabulary(given) else (None, None)
        derived = derive(given, vocab_size=vocab_size, data_tokens=data_tokens)
        # Some commands lack some of the options.
        known = [one for one in derived if f"--{one.name.replace('_', '-')}" in options]
        values = {one.name: list(one.value) if isinstance(one.value, tuple) else one.value for one in known}
        SettingsFile(values, _option(given))(app, commands, arguments)
        if self._verbose and known:
            _log(_option(given), known)


def _sizes(given: Mapping[str, Any], options: Collection[str]) -> tuple[int, int | None]:
    """The size of the vocabulary, and the number of training tokens where that is known."""
    vocab_size: int | None = given.get("vocab_size")
    if given.get("data") is not None:
        manifest = TokenFile.open(given["data"], "train").manifest
        return vocab_size or manifest.vocab_size, manifest.count
    if vocab_size is None:
        ways = " or ".join(option for option in ("--data", "--vocab-size") if option in options)
        raise UsageError(f"--depth and --preset need the vocabulary size: give {ways}")
    return vocab_size, None


def _option(given: Mapping[str, Any]) -> str:
    if given.get("depth") is not None:
        return f"--depth {given['depth']}"
    return f"--preset {given['preset']}{' --improved' if given.get('improved') else ''}"


def _log(option: str, derived: Sequence[Derived]) -> None:
    """A line for each source, with all that it gives."""
    values: dict[str, list[str]] = {}
    for one in derived:
        values.setdefault(one.reason, []).append(f"{one.name} = {one.value}")
    logger.info("Derived from %s:", option)
    for reason, those in values.items():
        logger.info("  %s: %s", ", ".join(those), reason)


def parse_train_settings(table: Mapping[str, Any], *, source: str) -> TrainSettings:
    """Settings from a flat table, converted and checked like those of a `--config` file.

    Args:
        table: The settings that differ from the defaults.
        source: Where they come from, for error messages.

    Raises:
        UsageError: a key or a value is invalid.
    """
    config = (SettingsFile(table, source), refuse_fractions, ParentOptions(), ScalingOptions(verbose=False))
    app = App(config=config, default_parameter=Parameter(negative_iterable=()))

    @app.default
    def settings_of(*, settings: TrainSettings) -> TrainSettings:
        return settings

    try:
        _, bound, _ = app.parse_args([], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(f"{source}: {error}".replace(f"{source}: {source}", source)) from error
    settings: TrainSettings = bound.arguments["settings"]
    return settings
