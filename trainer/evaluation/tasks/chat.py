"""Questions as conversations: apply_chat_template in lm-evaluation-harness."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, cycle

from shared.chat import ChatRenderer, ChatTemplateError, Protection, find_end_of_turn, read_templates
from shared.lm import ModelFolder
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.tasks.items import Item, Kind


class ChatPrompts:
    """Renders questions as what a user says, up to where the assistant's answer begins.

    Attributes:
        end_of_turn: The id that the template writes after an answer; None where it writes none.
    """

    def __init__(self, renderer: ChatRenderer, folder: ModelFolder) -> None:
        self._renderer = renderer
        self._special_tokens = folder.tokenizer.special_tokens
        self._sources = "".join(renderer.file.templates.values())
        end_of_turn = find_end_of_turn(renderer.render, folder.tokenizer)
        self.end_of_turn = None if end_of_turn is None else end_of_turn.id

    def ask(self, item: Item, kind: Kind, turns: Sequence[tuple[str, str]]) -> Item:
        """The item with a conversation as its context; a choice is an answer as it is, without a space before it.

        Args:
            item: The question.
            kind: Its kind.
            turns: Questions and answers before it.

        Raises:
            CorpusError: If the template refuses the question or fails; names the place.
        """
        said = [*chain.from_iterable(turns), item.context]
        messages = [
            {"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), said, strict=False)
        ]
        protection = Protection(self._special_tokens, [messages, item.choices], self._sources)
        try:
            context = self._renderer.render(protection.protect(messages), add_generation_prompt=True)
        except ChatTemplateError as error:
            raise item.error(str(error)) from None
        delimiter = "" if kind == "multiple choice" else item.delimiter
        return replace(item, context=context, delimiter=delimiter, protection=protection)


@contextmanager
def open_chat(folder: ModelFolder) -> Iterator[ChatPrompts]:
    """A model's chat template, in a process that ends with the context.

    Raises:
        UsageError: If it has none.
        TrainerError: If its file cannot be read.
    """
    try:
        file = read_templates(folder.path)
    except ChatTemplateError as error:
        raise TrainerError(str(error)) from None
    if file is None:
        raise UsageError(
            f"{folder.path} has no chat template for --apply-chat-template; leave it out, or take a model that has one"
        )
    renderer = ChatRenderer(file)
    try:
        yield ChatPrompts(renderer, folder)
    finally:
        renderer.close()
