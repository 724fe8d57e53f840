"""Where in a rendered conversation the assistant's answers are: what a model writes, and learns to write.

By the template's own `{% generation %}` blocks; where it has none, by rendering the messages before each answer as a
service does when it asks the model for that answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from shared.bpe import AddedToken, Tokenizer
from shared.chat.errors import ChatTemplateError

Span = tuple[int, int]
"""The first character, and the one after the last."""

_PROBE = "An answer."
_ADVICE = "; give a template that marks the answers with {% generation %}"


def marked_answers(text: str, marked: str, begin: str, end: str) -> list[Span]:
    """The spans of the `{% generation %}` blocks of a text, those without text left out.

    Args:
        text: What the template writes.
        marked: The same with `begin` and `end` around each block.
        begin: A character that does not occur in the text.
        end: Another one.

    Raises:
        TemplateError: The template treats the marks as text, as a filter around blocks may, or blocks are nested.
    """
    spans: list[Span] = []
    first, *rest = marked.split(begin)
    plain = [first]
    place = len(first)
    for part in rest:
        inside, found, after = part.partition(end)
        if not found or end in after:
            raise TemplateError("its {% generation %} blocks are nested, or cut by a filter")
        if inside:
            spans.append((place, place + len(inside)))
        plain += (inside, after)
        place += len(inside) + len(after)
    if "".join(plain) != text:
        raise TemplateError("its text depends on the marks of its {% generation %} blocks")
    return spans


def rendered_answers(
    render: Callable[[Mapping[str, Any]], str], text: str, variables: Mapping[str, Any], end_of_turn: str | None
) -> list[Span]:
    """The spans of a conversation's answers: each begins after what a service renders to ask for it.

    Args:
        render: Renders variables.
        text: The whole conversation, rendered.
        variables: With its `messages`.
        end_of_turn: The special token that ends an answer, and is the last part of it. None where the template writes
            none: an answer then ends where the text of the messages up to it does.

    Raises:
        TemplateError: The text up to an answer, or up to its end, is another one in the whole conversation.
    """
    messages = variables["messages"]
    spans: list[Span] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render({**variables, "messages": messages[:number], "add_generation_prompt": True})
        if end_of_turn is None:
            through = render({**variables, "messages": messages[: number + 1]})
            end = len(through) if text.startswith(through) else -1
        else:
            place = text.find(end_of_turn, len(prompt))
            end = -1 if place < 0 else place + len(end_of_turn)
        if not text.startswith(prompt) or len(prompt) < (spans[-1][1] if spans else 0):
            raise TemplateError(f"what it writes to ask for message {number + 1} is not in the conversation{_ADVICE}")
        if end <= len(prompt):
            raise TemplateError(f"it does not end message {number + 1} as the last one of a conversation{_ADVICE}")
        spans.append((len(prompt), end))
    return spans


def find_end_of_turn(render: Callable[[Sequence[Mapping[str, Any]]], str], tokenizer: Tokenizer) -> AddedToken | None:
    """The special token that a template writes after an answer.

    Args:
        render: Renders messages.
        tokenizer: The model's.

    Returns:
        None where it writes none, or refuses a question with an answer.
    """
    messages = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": _PROBE}]
    try:
        _, found, rest = render(messages).rpartition(_PROBE)
    except ChatTemplateError:
        return None
    tokens = (part for part in tokenizer.split_marked(rest) if isinstance(part, AddedToken) and part.special)
    return next(tokens, None) if found else None
