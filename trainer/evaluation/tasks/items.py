"""What a record of a task becomes: texts to score, or a prompt to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shared.bpe import Tokenizer
from shared.chat import Protection, encode_rendered
from trainer.evaluation.windows import Ids
from trainer.text.utf8 import CorpusError

Kind = Literal["multiple choice", "last word", "answer"]


@dataclass(frozen=True)
class Item:
    """A question.

    Attributes:
        place: Its file and line or row, for error messages.
        context: What the model reads.
        choices: The texts that are scored after it and the delimiter; the only one of a last word is that word.
        gold: The index of the right one.
        answers: Of a question that the model answers in its own words: what is right. Then there are no choices.
        delimiter: Between the context and a choice.
        protection: Of a rendered conversation: what keeps the question's text from being control. None for text.
    """

    place: str
    context: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()
    delimiter: str = " "
    protection: Protection | None = None

    @property
    def answer(self) -> str:
        """The right answer, or the first of several."""
        return self.choices[self.gold] if self.choices else self.answers[0]

    @property
    def text(self) -> str:
        """What the model reads, without the marks of the protection."""
        return self.context if self.protection is None else self.context.replace(self.protection.mark, "")

    @property
    def continuations(self) -> list[str]:
        """What may follow the context, as it is encoded."""
        texts = [self.delimiter + choice for choice in self.choices]
        return texts if self.protection is None else [self.protection.protect(text) for text in texts]

    def error(self, what: str) -> CorpusError:
        """An error that names the place."""
        return CorpusError(f"{self.place}: {what}")


def encode_items(tokenizer: Tokenizer, items: Sequence[Item], texts: Sequence[Sequence[str]]) -> list[list[Ids]]:
    """The ids of some texts of each item, with the ids that the tokenizer puts around a text; all texts at once.

    Conversations begin and end as their template says, and the special tokens that it writes are recognized.
    """
    plain = [text for item, some in zip(items, texts, strict=True) if item.protection is None for text in some]
    encoded = iter(tokenizer.encode_batch_to_numpy(plain, add_special_tokens=True))

    def encode(item: Item, text: str) -> Ids:
        if item.protection is None:
            return next(encoded)
        return np.array(encode_rendered(text, item.protection.mark, tokenizer), np.uint32)

    return [[encode(item, text) for text in some] for item, some in zip(items, texts, strict=True)]
