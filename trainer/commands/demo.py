"""`demo`: everything at once, on the embedded stories."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trainer.errors import InterruptedRunError


def demo(*, output: Path = Path("models/demo"), keep: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Make a small model that tells children's stories, in a few minutes on a CPU.

    It writes its own corpus, learns a vocabulary, encodes the corpus and trains. Interrupted, it goes on when called
    again; where the model is there already, nothing is done.

    Args:
        output: Folder for the model.
        keep: Leave the work folder OUTPUT.work, for a look at the stories, the tokens and the training run.
    """
    from trainer.demo.pipeline import make_demo

    try:
        make_demo(output, keep=keep)
    except InterruptedRunError as error:
        error.add_note("go on with the same command")
        raise
