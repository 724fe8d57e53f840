"""Putting questions to a model: scoring their choices, or letting it write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shared.lm import ModelFolder
from trainer.compute.device import Device
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.tasks.generation import AnswerRules, write_answers
from trainer.evaluation.tasks.items import Item, encode_items
from trainer.evaluation.tasks.likelihood import score_requests
from trainer.evaluation.tasks.requests import Request, RequestEncoder
from trainer.evaluation.tasks.tallies import AnswerTally, ChoiceTally, LastWordTally, Sample, Tally, all_finite
from trainer.evaluation.windows import Ids


class Work(NamedTuple):
    """What questions take.

    Attributes:
        items: How many they are.
        tokens: Inputs of the model, at most.
        cut: Questions whose beginning does not fit into the model's context.
    """

    items: int = 0
    tokens: int = 0
    cut: int = 0


class Runner(Protocol):
    """Puts questions of one kind to a model."""

    @property
    def tally(self) -> Tally:
        """What became of them."""

    def work(self, items: Sequence[Item]) -> Work:
        """Check questions, and say what they take; see `run` for errors."""

    def run(self, items: Sequence[Item]) -> Iterator[tuple[int, list[Sample]]]:
        """Put questions.

        Yields:
            Tokens that were done of those of `work`, and an empty list; at the end what became of each question.

        Raises:
            CorpusError: If a question cannot be put to this model.
            TrainerError: If the model gives no finite probabilities.
        """


@dataclass(frozen=True)
class LikelihoodRunner:
    """Scores choices and last words.

    Attributes:
        folder: The model.
        device: Where it is.
        batch_size: See `score_requests`.
        batch_tokens: See `score_requests`.
        tally: See `Runner`.
    """

    folder: ModelFolder
    device: Device
    batch_size: int | None
    batch_tokens: int
    tally: ChoiceTally | LastWordTally

    def work(self, items: Sequence[Item]) -> Work:
        """See `Runner`."""
        requests = self._encode(items)
        longest = self.folder.config.context_length
        cut = sum(len(each.context) + max(map(len, each.continuations)) - 1 > longest for each in requests)
        return Work(len(items), sum(request.tokens for request in requests), cut)

    def run(self, items: Sequence[Item]) -> Iterator[tuple[int, list[Sample]]]:
        """See `Runner`."""
        requests = self._encode(items)
        scoring = score_requests(
            self.folder.model,
            requests,
            batch_size=self.batch_size,
            batch_tokens=self.batch_tokens,
            device=self.device,
        )
        for tokens, scores in scoring:
            if broken := [item for item, each in zip(items, scores, strict=False) if not all_finite(each)]:
                raise TrainerError(
                    f"{broken[0].place}: the probabilities of {self.folder.path} are NaN or infinite; its training has "
                    "diverged, or its weights are damaged"
                )
            of_choices = [each.of(request.continuation_of) for request, each in zip(requests, scores, strict=False)]
            yield tokens, [self.tally.add(item, each) for item, each in zip(items, of_choices, strict=False)]

    def _encode(self, items: Sequence[Item]) -> list[Request]:
        return RequestEncoder(self.folder.tokenizer, self.folder.config.context_length).encode(items)


@dataclass(frozen=True)
class AnswerRunner:
    """Lets the model answer.

    Attributes:
        folder: The model.
        rules: Where its answers end.
        tally: See `Runner`.
    """

    folder: ModelFolder
    rules: AnswerRules
    tally: AnswerTally
    _room: int = field(init=False)

    def __post_init__(self) -> None:
        room = self.folder.config.context_length - self.rules.max_tokens
        if room < 1:
            raise UsageError(
                f"--max-answer-tokens must be less than {self.folder.config.context_length}, the context length of the "
                f"model; got {self.rules.max_tokens}"
            )
        object.__setattr__(self, "_room", room)

    def work(self, items: Sequence[Item]) -> Work:
        """See `Runner`."""
        lengths = list(map(len, self._encode(items)))
        kept = sum(min(length, self._room) for length in lengths)
        cut = sum(length > self._room for length in lengths)
        return Work(len(items), kept + len(items) * self.rules.max_tokens, cut)

    def run(self, items: Sequence[Item]) -> Iterator[tuple[int, list[Sample]]]:
        """See `Runner`."""
        prompts = [ids[-self._room :] for ids in self._encode(items)]
        texts = [""] * len(items)
        for number, text in write_answers(self.folder, prompts, self.rules):
            texts[number] = text
            yield len(prompts[number]) + self.rules.max_tokens, []
        yield 0, [self.tally.add(item, text) for item, text in zip(items, texts, strict=True)]

    def _encode(self, items: Sequence[Item]) -> Sequence[Ids]:
        prompts = [ids for [ids] in encode_items(self.folder.tokenizer, items, [[item.context] for item in items])]
        for item, ids in zip(items, prompts, strict=True):
            if not len(ids):
                raise item.error(
                    "the prompt is empty: give the question a text, or a --prompt with more than {question}"
                )
        return prompts
