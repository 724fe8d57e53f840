"""What a record of a task becomes: texts to score, or a prompt to answer."""

from dataclasses import dataclass
from typing import Literal

from trainer.text.utf8 import CorpusError

Kind = Literal["multiple choice", "last word", "answer"]


@dataclass(frozen=True)
class Item:
    """A question.

    Attributes:
        place: Its file and line or row, for error messages.
        context: What the model reads.
        choices: The texts that are scored after it and a space; the only one of a last word is that word.
        gold: The index of the right one.
        answers: Of a question that the model answers in its own words: what is right. Then there are no choices.
    """

    place: str
    context: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()

    def error(self, what: str) -> CorpusError:
        """An error that names the place."""
        return CorpusError(f"{self.place}: {what}")
