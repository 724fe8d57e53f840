"""The dial among the options: `--depth` or `--preset` fills what the command line and its file left open."""

import logging
from collections.abc import Collection
from typing import Any

import cyclopts
from cyclopts import App, ArgumentCollection

from trainer.errors import UsageError
from trainer.recipes.scaling import Derived, derive
from trainer.tokens.token_file import TokenFile

logger = logging.getLogger(__name__)


class DialOptions:
    """A source of options for cyclopts, to come after all others.

    Args:
        told: Whether to log what was derived, and from what.
    """

    def __init__(self, *, told: bool) -> None:
        self._told = told

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
        if given.get("depth") is None and given.get("preset") is None:
            return
        options = {name for argument in arguments for name in argument.names}
        vocab_size, data_tokens = _sizes(given, options)
        derived = derive(given, vocab_size=vocab_size, data_tokens=data_tokens)
        # What a command has no option for, it does not need.
        known = [one for one in derived if f"--{one.name.replace('_', '-')}" in options]
        values = {one.name: one.value for one in known}
        cyclopts.config.Dict(data=values, source="the dial", use_commands_as_keys=False)(app, commands, arguments)
        if self._told and known:
            _tell(given, known)


def _sizes(given: dict[str, Any], options: Collection[str]) -> tuple[int, int | None]:
    """The size of the vocabulary, and the number of training tokens where that is known."""
    vocab_size: int | None = given.get("vocab_size")
    if given.get("data") is not None:
        manifest = TokenFile.open(given["data"], "train").manifest
        return vocab_size or manifest.vocab_size, manifest.count
    if vocab_size is None:
        ways = " or ".join(option for option in ("--data", "--vocab-size") if option in options)
        raise UsageError(f"depth and preset need the size of the vocabulary: give {ways}")
    return vocab_size, None


def _tell(given: dict[str, Any], derived: list[Derived]) -> None:
    dial = f"depth {given['depth']}" if given.get("depth") is not None else f"preset {given['preset']}"
    logger.info("%s gives what you have not set yourself:", dial)
    for one in derived:
        logger.info("  %s = %s: %s", one.name, one.value, one.reason)
