"""Where in a rendered conversation the assistant's answers are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.bpe import AddedToken, Tokenizer
from shared.chat.errors import ChatTemplateError

_PROBE = "An answer."


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
    tokens = (token for _, token in tokenizer.split_added_tokens(rest) if token is not None and token.special)
    return next(tokens, None) if found else None
