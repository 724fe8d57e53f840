"""Questions about the embedded stories, with answers that have to be read in the story."""

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainer.demo.cast import draw_cast
from trainer.demo.grammar import Entity, StableRandom, expand
from trainer.demo.plots import Question, load_plots

_FACT = re.compile(r"\[(.*)\]")
_HELD_OUT_SHARE = 10
"""Of so many casts, one is held out."""


@dataclass(frozen=True, slots=True)
class Example:
    """A story with a question about it.

    Attributes:
        story: The story.
        kind: What is asked for, such as "who".
        source: The question before names are filled in, the same for many stories.
        question: The question.
        answer: A sentence.
        fact: What has to be read in the story for it.
    """

    story: str
    kind: str
    source: str
    question: str
    answer: str
    fact: str

    @property
    def message(self) -> str:
        """Story and question, as the model is asked first."""
        return f"{self.story}\n\n{self.question}"


Conversation: TypeAlias = Sequence[Example]
"""Questions about the same story, one after the other."""


def messages_of(asked: Conversation) -> dict[str, Any]:
    """A conversation as `encode --chat` reads it: the story is before the first question."""
    messages = []
    for number, each in enumerate(asked):
        messages.append({"role": "user", "content": each.question if number else each.message})
        messages.append({"role": "assistant", "content": each.answer})
    return {"messages": messages}


def conversations(seed: int, *, held_out: bool) -> Iterator[Conversation]:
    """Generate stories with all questions about them without end: the same ones for a seed, on every Python version.

    The questions of a story come in random order. Stories are divided by who and what is in them: a cast that is held
    out is in no story for training, for any seed.

    Args:
        seed: Of the stories.
        held_out: Which of the two parts.
    """
    rng = StableRandom(seed)
    plots = load_plots()
    while True:
        plot = rng.choice(plots)
        variant = rng.choice(range(len(plot.templates)))
        cast = draw_cast(plot.roles, rng)
        if _is_held_out(cast.values()) is not held_out:
            continue
        story = expand(plot.templates[variant], cast, rng)
        asked = [_example(story, question, cast, rng) for question in _shuffled(plot.questions[variant], rng)]
        # Some wordings of a plot leave something out.
        yield [each for each in asked if each.fact.lower() in story.lower()]


def _shuffled(questions: Sequence[Question], rng: StableRandom) -> Iterator[Question]:
    left = list(questions)
    while left:
        yield left.pop(rng.choice(range(len(left))))


def _example(story: str, asked: Question, cast: Mapping[str, Entity], rng: StableRandom) -> Example:
    question, answer = expand(asked.question, cast, rng), expand(asked.answer, cast, rng)
    match = _FACT.search(answer)
    assert match is not None, answer
    return Example(story, asked.kind, asked.source, question, _FACT.sub(r"\1", answer), match[1])


def majority_accuracy(training: Iterable[Example], asked: Iterable[Example]) -> float:
    """The share of answers that a guess would get right which knows, of each question, its most frequent answer."""
    facts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for example in training:
        facts[example.source][example.fact] += 1
    guesses = {source: counts.most_common(1)[0][0] for source, counts in facts.items()}
    hits = [guesses.get(example.source) == example.fact for example in asked]
    return sum(hits) / len(hits)


def _is_held_out(cast: Iterable[Entity]) -> bool:
    named = " ".join(word for entity in cast for word in entity.values())
    return zlib.crc32(named.encode()) % _HELD_OUT_SHARE == 0
