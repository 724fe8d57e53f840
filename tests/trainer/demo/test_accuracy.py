"""How answers are counted."""

from itertools import islice

from trainer.demo.accuracy import measure
from trainer.demo.questions import examples


class Scripted:
    """Answers from a table."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    def answer(self, question: str) -> str:
        return self._answers[question]


def test_an_answer_is_right_word_for_word_and_its_fact_is_counted_apart() -> None:
    asked = [*islice((each for each in examples(1, held_out=True) if each.kind == "who"), 4)]
    other = next(each for each in examples(3, held_out=True) if each.kind == "color")
    answers = [
        f" {asked[0].answer}\n",
        f"It was {asked[1].fact.lower()}!",
        f"{asked[2].fact}y did.",
        f"{asked[3].answer} Or not.",
        other.answer,
    ]
    asked.append(other)
    seen: list[int] = []
    answerer = Scripted({each.message: answer for each, answer in zip(asked, answers, strict=True)})
    accuracy = measure(answerer, asked, lambda done, note="": seen.append(done))
    assert accuracy.exact == 2 / 5
    assert accuracy.fact == 4 / 5
    assert accuracy.kinds == {"color": 1.0, "who": 1 / 4}
    assert seen == [1, 2, 3, 4, 5]
