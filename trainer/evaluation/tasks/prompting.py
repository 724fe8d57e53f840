"""How questions are asked: with answered ones before them, as lm-evaluation-harness puts them; in conversations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.errors import UsageError
from trainer.evaluation.tasks.chat import ChatPrompts
from trainer.evaluation.tasks.formats import Format
from trainer.evaluation.tasks.items import Item
from trainer.evaluation.tasks.reading import TaskFile


@dataclass(frozen=True)
class Examples:
    """The first questions of a file.

    Attributes:
        format: Theirs.
        turns: A question and its answer each.
    """

    format: Format
    turns: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, file: TaskFile, count: int) -> "Examples":
        """The first so many questions of a file.

        Raises:
            UsageError: If it has fewer.
            CorpusError: If one is not a question; names the line or row.
        """
        found = list(file.items())
        if len(found) < count:
            raise UsageError(f"{file.path} has {len(found)} questions; --shots {count} needs as many")
        file_format = found[0][0]
        # The harness puts a space between question and answer, also where the answer begins with one: of last words.
        space = " " if file_format.kind == "last word" else ""
        return cls(file_format, [(item.context, space + item.answer) for _, item in found])

    def check_format(self, other: Format) -> None:
        """Refuse questions of another format.

        Raises:
            UsageError: If they are.
        """
        if other is not self.format:
            raise UsageError(f"the examples of --shots-from are {self.format.name}, the questions {other.name}")

    def before(self, item: Item) -> Item:
        """The question after the examples, as one text."""
        return replace(item, context="".join(f"{asked} {answer}\n\n" for asked, answer in self.turns) + item.context)


@dataclass(frozen=True)
class Prompting:
    """How questions are asked.

    Attributes:
        examples: What comes before each; None for nothing.
        chat: The chat template; None for plain text.
    """

    examples: Examples | None
    chat: ChatPrompts | None

    def ask(self, item: Item, file_format: Format) -> Item:
        """The question as it is asked; see `Examples.check_format` and `ChatPrompts.ask` for errors."""
        if self.examples is not None:
            self.examples.check_format(file_format)
        if self.chat is not None:
            return self.chat.ask(item, file_format.kind, [] if self.examples is None else self.examples.turns)
        return item if self.examples is None else self.examples.before(item)
