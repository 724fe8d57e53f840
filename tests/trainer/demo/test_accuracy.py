"""How answers are counted."""

from collections.abc import Sequence
from itertools import islice

from trainer.demo.accuracy import measure
from trainer.demo.questions import Conversation, conversations


class Scripted:
    """Answers from a table, by the question asked last; remembers what it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []

    def answer(self, messages: Sequence[str]) -> str:
        self.asked.append([*messages])
        return self._answers[messages[-1]]


def of_kind(kind: str, count: int) -> list[Conversation]:
    return [*islice((asked for asked in conversations(1, held_out=True) if asked[0].kind == kind), count)]


def test_an_answer_is_right_word_for_word_and_its_fact_is_counted_apart() -> None:
    asked = [*of_kind("who", 4), *of_kind("color", 1)]
    first = [each[0] for each in asked]
    answers = [
        f" {first[0].answer}\n",
        f"It was {first[1].fact.lower()}!",
        f"{first[2].fact}y did.",
        f"{first[3].answer} Or not.",
        first[4].answer,
    ]
    table = {each.message: answer for each, answer in zip(first, answers, strict=True)}
    table |= {each[1].question: each[1].answer if each is asked[0] else "no" for each in (asked[0], asked[4])}
    seen: list[int] = []
    answerer = Scripted(table)
    accuracy = measure(answerer, asked, lambda done, note="": seen.append(done))
    assert accuracy.exact == 2 / 5
    assert accuracy.fact == 4 / 5
    assert accuracy.kinds == {"color": 1.0, "who": 1 / 4}
    assert accuracy.both == 1 / 5
    assert seen == [1, 2, 3, 4, 5]
    assert answerer.asked[1] == [first[0].message, answers[0], asked[0][1].question], "with its own answer before it"
    assert len(answerer.asked) == 5 + 2, "after a wrong answer, nothing more is asked"
