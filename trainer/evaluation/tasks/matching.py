"""Comparing what a model wrote with the right answers: lm-evaluation-harness' filters and its exact_match."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Matching:
    """How answers are compared.

    Attributes:
        extract: What is looked for in the written text. Its first occurrence is the answer, or the
            first group of it that is not empty; None takes the whole text.
        ignore: What is removed from both sides.
        ignore_case: Whether upper and lower case are alike.
        ignore_punctuation: Whether ASCII punctuation is removed from both sides.
    """

    extract: re.Pattern[str] | None = None
    ignore: Sequence[re.Pattern[str]] = ()
    ignore_case: bool = False
    ignore_punctuation: bool = False

    def answer(self, text: str) -> str | None:
        """The answer in a text, without white space around it; None if there is none to extract."""
        if self.extract is None:
            return text.strip()
        found = self.extract.search(text)
        if found is None:
            return None
        groups = [found[0]] if not found.groups() else [group for group in found.groups() if group]
        return groups[0].strip() if groups else None

    def is_right(self, answer: str | None, right: Sequence[str]) -> bool:
        """Whether an answer is one of the right ones."""
        return answer is not None and self._normal(answer) in {self._normal(each.strip()) for each in right}

    def _normal(self, text: str) -> str:
        for pattern in self.ignore:
            text = pattern.sub("", text)
        if self.ignore_case:
            text = text.lower()
        return text.translate(_NO_PUNCTUATION) if self.ignore_punctuation else text
