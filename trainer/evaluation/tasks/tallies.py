"""What became of the questions of a file: counted, and described one by one."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trainer.evaluation.tasks.items import Item
from trainer.evaluation.tasks.likelihood import Scores
from trainer.evaluation.tasks.matching import Matching
from trainer.evaluation.tasks.metrics import Accuracy, Metric, perplexity, right_choices

Sample = Mapping[str, Any]


class Tally(Protocol):
    """The results of a file."""

    def metrics(self) -> dict[str, Metric]:
        """The metrics, by name; at least one item was added."""


@dataclass
class ChoiceTally:
    """Multiple choice."""

    accuracy: Accuracy = field(default_factory=Accuracy)

    def add(self, item: Item, scores: Scores) -> Sample:
        """Count an item, and describe what became of it."""
        right = right_choices(scores.log_likelihoods, item.choices, item.gold)
        self.accuracy.add(right)
        return {
            "context": item.text,
            "choices": item.choices,
            "gold": item.gold,
            "log_likelihoods": scores.log_likelihoods.tolist(),
            "chosen": int(np.argmax(scores.log_likelihoods)),
            **right,
        }

    def metrics(self) -> dict[str, Metric]:
        """See `right_choices`."""
        return self.accuracy.metrics()


@dataclass
class LastWordTally:
    """Last words: right if the model would have written exactly that."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    log_likelihoods: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, item: Item, scores: Scores) -> Sample:
        """Count an item, and describe what became of it."""
        [log_likelihood], [greedy] = scores.log_likelihoods.tolist(), scores.greedy.tolist()
        self.accuracy.add({"acc": greedy})
        self.log_likelihoods.append(log_likelihood)
        return {"context": item.text, "word": item.choices[0], "log_likelihood": log_likelihood, "acc": greedy}

    def metrics(self) -> dict[str, Metric]:
        """See `perplexity`."""
        return {"perplexity": perplexity(self.log_likelihoods), **self.accuracy.metrics()}


@dataclass
class AnswerTally:
    """Answers in the model's own words."""

    matching: Matching
    accuracy: Accuracy = field(default_factory=Accuracy)

    def add(self, item: Item, text: str) -> Sample:
        """Count an item, and describe what became of it."""
        answer = self.matching.answer(text)
        right = {"exact_match": self.matching.is_right(answer, item.answers)}
        self.accuracy.add(right)
        return {"prompt": item.text, "answers": item.answers, "written": text, "answer": answer, **right}

    def metrics(self) -> dict[str, Metric]:
        """The share of right ones."""
        return self.accuracy.metrics()


def all_finite(scores: Scores) -> bool:
    """Whether a model gave usable probabilities."""
    return math.isfinite(scores.log_likelihoods.sum())
