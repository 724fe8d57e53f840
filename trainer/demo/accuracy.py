"""How many questions about stories a model answers right."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol, Self

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.chat import ChatRenderer, Protection, TemplateFile, encode_rendered, find_end_of_turn
from shared.lm import SamplingParams, Transformer
from trainer.console.progress import Report
from trainer.demo.questions import Conversation
from trainer.evaluation.sampling import sample_text

_MAX_TOKENS = 32
"""Of an answer; the longest right ones have half as many, and the context may leave less."""


@dataclass(frozen=True)
class Accuracy:
    """The share of questions that were answered right.

    Attributes:
        exact: The answer to the first question about a story is the expected sentence, word for word.
        fact: That answer has what had to be read in the story.
        kinds: `exact` for each kind of question.
        both: So is the answer to the next question of the same conversation.
    """

    exact: float
    fact: float
    kinds: dict[str, float]
    both: float


class Answers(Protocol):
    """Something that answers questions."""

    def answer(self, messages: Sequence[str]) -> str:
        """The answer to the last of these messages, which the user and the assistant write in turn."""


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

    def _prompt(self, messages: Sequence[str]) -> list[int]:
        protection = Protection(self._tokenizer.special_tokens, messages, self._sources)
        turns = [
            {"role": role, "content": protection.protect(text)}
            for role, text in zip(cycle(("user", "assistant")), messages, strict=False)
        ]
        rendered = self._renderer.render(turns, add_generation_prompt=True)
        return encode_rendered(rendered, protection.mark, self._tokenizer)

    def answer(self, messages: Sequence[str]) -> str:
        """The model's answer to the last of these messages, which the user and the assistant write in turn."""
        return "".join(
            sample_text(
                self._model,
                self._tokenizer,
                self._prompt(messages),
                SamplingParams(temperature=0),
                max_tokens=_MAX_TOKENS,
                eos_token_ids=self._ends,
                valid_tokens=self._valid_tokens,
            )
        )


def measure(answerer: Answers, asked: Sequence[Conversation], report: Report) -> Accuracy:
    """Ask the first two questions of conversations, and compare the answers with the right ones."""
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    facts = both = 0
    for number, (first, second, *_) in enumerate(asked, start=1):
        answer = answerer.answer([first.message])
        counts[first.kind] += 1
        is_right = answer.strip() == first.answer
        right[first.kind] += is_right
        facts += re.search(rf"\b{re.escape(first.fact)}\b", answer, re.IGNORECASE) is not None
        both += is_right and answerer.answer([first.message, answer, second.question]).strip() == second.answer
        report(number)
    kinds = {kind: right[kind] / count for kind, count in sorted(counts.items())}
    return Accuracy(right.total() / counts.total(), facts / counts.total(), kinds, both / counts.total())
