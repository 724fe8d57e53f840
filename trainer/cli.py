"""The command line: its commands, the sources of their settings, and their exit status.

Exit status: 0 done, 1 the job failed, 2 wrong usage, 128 + N stopped by signal N (130 after Ctrl-C).
"""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, ArgumentCollection, CycloptsError, CycloptsPanel, Parameter
from rich.panel import Panel

from shared.system.errors import describe
from trainer.commands.clean import clean
from trainer.commands.demo import demo
from trainer.commands.encode import encode
from trainer.commands.estimate import estimate
from trainer.commands.evaluate import evaluate
from trainer.commands.evaluate_tokenizers import evaluate_tokenizers
from trainer.commands.export import export
from trainer.commands.generate import generate
from trainer.commands.import_model import import_model
from trainer.commands.report import report
from trainer.commands.schedule import schedule
from trainer.commands.show import show
from trainer.commands.sweep import sweep
from trainer.commands.tokens import tokens
from trainer.commands.train import train
from trainer.commands.vocab import vocab
from trainer.commands.watch import watch
from trainer.compute.launch import check_command, rank_and_count
from trainer.console.program import PROGRAM
from trainer.console.progress import set_up_logging
from trainer.console.signals import STOP_SIGNALS
from trainer.errors import InterruptedRunError, UsageError
from trainer.recipes.options import ScalingOptions
from trainer.recipes.parent import ParentOptions
from trainer.settings.file import read_settings_file
from trainer.settings.whole_numbers import refuse_fractions
from trainer.sweep.studies import StudyDefaults

logger = logging.getLogger(__name__)

_HYPHEN = "\0-"
"""Stands for a lone hyphen while cyclopts parses, which takes that for an option; no argument can contain it."""

DERIVED_OPTIONS = (refuse_fractions, ParentOptions(), ScalingOptions(verbose=True), StudyDefaults())
"""What checks and fills the options after the command line and the file; each fills what those before left open."""


def _name_option(error: CycloptsError) -> Panel:
    """The message of cyclopts, and the option that it is about if it does not say so."""
    name = error.argument.name if error.argument else ""
    message = str(error)
    return CycloptsPanel(message if name in message else f"{name}: {message}")


app = App(
    name=PROGRAM,
    help="""Turn plain text into a language model that you own.

    The steps are `vocab` (learn a vocabulary), `encode` (text to token files), `train`, and `generate`.
    `demo` runs all of them on an embedded corpus. `COMMAND --help` explains every option.
    """,
    version_flags=[],
    default_parameter=Parameter(negative_iterable=()),
    error_formatter=_name_option,
)
for _command in (
    *(clean, vocab, encode, tokens, show, estimate, schedule, train, sweep, watch, report),
    *(evaluate, evaluate_tokenizers, generate, export, demo),
):
    app.command(_command)
app.command(import_model, name="import")


@app.meta.default
def launch(
    *arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Path | None = None,
    verbose: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Run one command.

    Args:
        arguments: The command and its options.
        config: TOML file with any of the command's options, as `name = value`; the command line takes precedence.
        verbose: Show the whole traceback when a job fails, and log more.
    """
    set_up_logging(verbose=verbose, errors_only=rank_and_count()[0] > 0)
    try:
        check_command(next(iter(arguments), None))
        file = () if config is None else (read_settings_file(config),)
        app.config = (_restore_hyphens, *file, *DERIVED_OPTIONS)
        app([_HYPHEN if argument == "-" else argument for argument in arguments])
    except BrokenPipeError:
        # The reader of our output closed the pipe; Python must not complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if verbose:
            logger.exception("the job failed")
        logger.error(_message(error))  # noqa: TRY400 - one message for people; --verbose has shown the rest
        sys.exit(_exit_status(error))


def _restore_hyphens(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Turn the stand-ins for lone hyphens back; inputs read standard input for a hyphen (cyclopts calls this)."""
    for argument in arguments:
        argument.tokens[:] = [t.evolve(value="-") if t.value == _HYPHEN else t for t in argument.tokens]


def _message(error: Exception) -> str:
    """One message for people."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"error: {error.filename}: expected a directory, found a file; give another name, or move the file"
    if isinstance(error, OSError) and error.strerror:
        return f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"error: {describe(error)}"
    if isinstance(error, InterruptedRunError):
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    if type(error).__module__.startswith(("shared.", "trainer.")):
        return f"error: {error}"
    return f"unexpected {type(error).__name__}: {error} (--verbose shows where)"


def _exit_status(error: Exception) -> int:
    if isinstance(error, InterruptedRunError):
        return 128 + error.signal_number
    return 2 if isinstance(error, UsageError) else 1


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        app.meta()
    except OSError as error:  # help that cannot be written, as on a full disk
        sys.exit(_message(error))
    finally:
        # The work is done: no signal may disturb the interpreter while it exits.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
