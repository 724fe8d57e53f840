"""How many questions about stories a model answers right."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.chat import ChatRenderer, Protection, TemplateFile, encode_rendered, find_end_of_turn
from shared.lm import SamplingParams, Transformer
from trainer.console.progress import Report
from trainer.demo.questions import Example
from trainer.evaluation.sampling import sample_text

_MAX_TOKENS = 32
"""Of an answer; the longest right ones have half as many, and the context may leave less."""


@dataclass(frozen=True)
class Accuracy:
    """The share of questions that were answered right.

    Attributes:
        exact: The answer is the expected sentence, word for word.
        fact: The answer has what had to be read in the story.
        kinds: `exact` for each kind of question.
    """

    exact: float
    fact: float
    kinds: dict[str, float]


class Answers(Protocol):
    """Something that answers questions."""

    def answer(self, question: str) -> str:
        """The answer to a question."""


class Answerer:
    """A model that answers questions as the service does at temperature 0; to be used in a `with` block.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        valid_tokens: bool [vocab_size], the ids that have a token.
        templates: The chat template.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, valid_tokens: Tensor, templates: TemplateFile) -> None:
        self._model, self._tokenizer, self._valid_tokens = model.eval(), tokenizer, valid_tokens
        self._sources = "".join(templates.templates.values())
        self._renderer = ChatRenderer(templates)
        end_of_turn = find_end_of_turn(self._renderer.render, tokenizer)
        ends = (tokenizer.end_of_text_id, None if end_of_turn is None else end_of_turn.id)
        self._ends = {end for end in ends if end is not None}

    def __enter__(self) -> Self:
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more only wait for each other over so few numbers
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._num_threads)
        self._renderer.close()

    def prompt(self, question: str) -> list[int]:
        """The ids that a question becomes."""
        protection = Protection(self._tokenizer.special_tokens, question, self._sources)
        messages = [{"role": "user", "content": protection.protect(question)}]
        return encode_rendered(
            self._renderer.render(messages, add_generation_prompt=True), protection.mark, self._tokenizer
        )

    def answer(self, question: str) -> str:
        """The model's answer."""
        return "".join(
            sample_text(
                self._model,
                self._tokenizer,
                self.prompt(question),
                SamplingParams(temperature=0),
                max_tokens=_MAX_TOKENS,
                eos_token_ids=self._ends,
                valid_tokens=self._valid_tokens,
            )
        )

    def fits(self, example: Example) -> bool:
        """Whether a question and its right answer fit into the context."""
        length = len(self.prompt(example.message)) + len(self._tokenizer.encode(example.answer)) + 1
        return length <= self._model.config.context_length


def measure(answerer: Answers, asked: Sequence[Example], report: Report) -> Accuracy:
    """Ask questions, and compare the answers with the right ones."""
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    facts = 0
    for number, example in enumerate(asked, start=1):
        answer = answerer.answer(example.message).strip()
        counts[example.kind] += 1
        right[example.kind] += answer == example.answer
        facts += re.search(rf"\b{re.escape(example.fact)}\b", answer, re.IGNORECASE) is not None
        report(number)
    kinds = {kind: right[kind] / count for kind, count in sorted(counts.items())}
    return Accuracy(right.total() / counts.total(), facts / counts.total(), kinds)
