"""The options of an evaluation on tasks, with the advice that `--help` shows."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, setting


@Parameter(name="*", group=Group("Tasks, instead of texts", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
    """Which questions are asked, and how their answers are judged."""

    tasks: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative=())] = ()
    """Files of questions with known answers, as they are published: HellaSwag, ARC and LAMBADA as .jsonl or .parquet
    (LAMBADA also as .txt, a passage on each line), and questions for the model to answer in its own words: a
    `question` and an `answer`, or a list of right ones, on each line. The format is recognized from the fields; the
    figures are those of lm-evaluation-harness."""

    limit: int | None = setting(None, minimum=1)
    """Only the first questions of each file, this many."""

    samples: Path | None = None
    """Write what became of each question to this file, as JSON lines."""

    record: bool = False
    """Write the results into the model folder too, to its evaluations.json, which the page /model and the model card
    show. Results of other files stay."""

    shots: int = setting(0, minimum=0)
    """Examples before each question, answered: the first ones of --shots-from, this many."""

    shots_from: Path | None = None
    """The file of the examples, of the same format: such as the training set of the questions."""

    apply_chat_template: bool = False
    """Ask as a user does in a conversation, by the model's chat template; choices and answers are the assistant's."""

    prompt: str = "Question: {question}\nAnswer:"
    """What the model reads of a question that it answers in its own words."""

    stop: Annotated[tuple[str, ...], Parameter(negative=())] = ("\n",)
    """A text that ends such an answer, as end-of-text does; may be repeated."""

    max_answer_tokens: int | None = setting(None, minimum=1)
    """The most tokens of such an answer. Of a prompt that does not fit into the model's context with them, the
    beginning is cut. Default: 256, but at most half of the context."""

    extract: str | None = None
    """A regular expression: its first occurrence in what the model wrote is the answer, or the first group of it that
    is not empty. Default: all that it wrote, without white space around it."""

    ignore: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """A regular expression: what it matches is removed from both sides before they are compared; may be repeated."""

    ignore_case: bool = False
    """Compare without regard to upper and lower case."""

    ignore_punctuation: bool = False
    """Compare without ASCII punctuation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.shots) != (self.shots_from is not None):
            raise UsageError("--shots and --shots-from belong together: how many examples, and the file of them")
        if "{question}" not in self.prompt:
            raise UsageError("--prompt must contain {question}, which stands for the question")
        if not all(self.stop):
            raise UsageError("a text that ends an answer is empty; name one with --stop, or leave it out")
        for name, patterns in (("--extract", filter(None, [self.extract])), ("--ignore", self.ignore)):
            for pattern in patterns:
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise UsageError(f"{name} is not a regular expression: {pattern!r}: {error}") from None
