"""The command line: which commands there are, where their settings come from, and what their exit status means.

Exit status: 0 done, 1 the job failed, 2 wrong usage, 128 + N stopped by signal N (130 after Ctrl-C).
"""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shared.system.errors import describe
from trainer.commands.demo import demo
from trainer.commands.encode import encode
from trainer.commands.estimate import estimate
from trainer.commands.evaluate import evaluate
from trainer.commands.evaluate_tokenizers import evaluate_tokenizers
from trainer.commands.generate import generate
from trainer.commands.report import report
from trainer.commands.sweep import sweep
from trainer.commands.train import train
from trainer.commands.vocab import vocab
from trainer.compute.launch import check_command, rank_and_count
from trainer.console.progress import set_up_logging
from trainer.errors import InterruptedRunError, UsageError
from trainer.recipes.options import ScalingOptions
from trainer.settings.file import read_settings_file
from trainer.settings.whole_numbers import refuse_fractions

logger = logging.getLogger(__name__)

app = App(
    name="python -m trainer",
    help="""Turn plain text into a language model that you own.

    The steps are `vocab` (learn a vocabulary), `encode` (text to token files), `train`, and `generate`.
    `demo` takes all of them at once on an embedded corpus. `COMMAND --help` says what to choose and why.
    """,
    version_flags=[],
    default_parameter=Parameter(negative_iterable=()),
)
for _command in (vocab, encode, estimate, train, sweep, report, evaluate, evaluate_tokenizers, generate, demo):
    app.command(_command)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Path | None = None,
    verbose: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Run one command.

    Args:
        tokens: The command and its options.
        config: TOML file with any of the command's options, as `name = value`; the command line wins over it.
        verbose: Show the whole traceback when a job fails, and log more.
    """
    set_up_logging(verbose=verbose, errors_only=rank_and_count()[0] > 0)
    try:
        check_command(next(iter(tokens), None))
        file = () if config is None else (read_settings_file(config),)
        app.config = (*file, refuse_fractions, ScalingOptions(verbose=True))
        # cyclopts takes a lone hyphen for an option.
        app(["/dev/stdin" if argument == "-" else argument for argument in tokens])
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not complain when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if verbose:
            logger.exception("the job failed")
        logger.error(_message(error))  # noqa: TRY400 - one message for people; --verbose has shown the rest
        sys.exit(_exit_status(error))


def _message(error: Exception) -> str:
    """One message for people."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"error: {error.filename}: a file is where a folder is to be; give another name, or move the file away"
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
    finally:
        # What is done is done: nothing is to disturb the interpreter while it goes down.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
