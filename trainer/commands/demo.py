"""`demo`: all steps in one command, on the embedded stories."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trainer.errors import InterruptedRunError


def demo(
    *,
    output: Path = Path("models/demo"),
    chat: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a small model that writes children's stories, in a few minutes on a CPU.

    It writes its own corpus, learns a vocabulary, encodes the corpus and trains. After an interruption, the same
    command continues; if the model already exists, it does nothing.

    Args:
        output: Folder for the model.
        chat: Also train it to answer questions about stories, a few minutes more, and write that model to OUTPUT-chat.
            It reports how many questions about other stories are answered right before and after.
        keep: Keep the work folder OUTPUT.work, with the stories, the tokens and the training run.
    """
    from trainer.demo.chat import make_chat_demo
    from trainer.demo.pipeline import make_demo

    make = make_chat_demo if chat else make_demo
    try:
        make(output, keep=keep)
    except InterruptedRunError as error:
        error.add_note("the same command continues")
        raise
