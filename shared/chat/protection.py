"""What is in a message stays text, even where it spells a special token.

A mark, which is a character that occurs nowhere else, is put into each special token in a message before the template
is rendered, and taken out of the text again once the special tokens that the template wrote are found. The beginning
of one at a message's end is marked too: the next message could complete it. transformers 5 has the same idea, as
`sanitize_control_tokens`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from shared.bpe import Tokenizer

_NONCHARACTERS = range(0xFDD0, 0xFDF0)  # of Unicode: meant for use within a program
_PRIVATE = range(0xF0000, 0xFFFFE)


class Protection:
    """Puts marks into the strings of one conversation.

    Args:
        special_tokens: The contents of the tokenizer's special tokens.
        values: All that is protected, of JSON's types: messages, tools, variables.
        template: The template, which must not have the mark either.

    Attributes:
        mark: The mark.
        answer_marks: Two more characters that occur nowhere, for `ChatRenderer.render_answers`.
    """

    def __init__(self, special_tokens: Iterable[str], values: Any, template: str) -> None:
        used = {*template, *json.dumps(values, ensure_ascii=False)}
        unused = (chr(code) for code in chain(_NONCHARACTERS, _PRIVATE) if chr(code) not in used)
        self.mark = next(unused)
        self.answer_marks = (next(unused), next(unused))
        self._tokens = frozenset(special_tokens)
        self._lengths = sorted(set(map(len, self._tokens)))
        self._beginnings = {token[:length] for token in self._tokens for length in range(1, len(token))}
        first = "".join({token[0] for token in self._tokens})
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def protect(self, value: Any) -> Any:
        """The value with marks in its strings."""
        if isinstance(value, str):
            return self._mark(value, len(value.rstrip()))
        if isinstance(value, Mapping):
            return {self._mark(key, 0): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def _mark(self, text: str, end: int) -> str:
        """The text with marks in special tokens, and in the beginning of one that is all up to `end`."""
        if self._first is None:
            return text
        last = end - self._lengths[-1]

        def mark(match: "re.Match[str]") -> str:
            start = match.start()
            is_begun = start > last and text[start:end] in self._beginnings
            return match[0] + self.mark if is_begun or self._is_whole(text, start) else match[0]

        return self._first.sub(mark, text)

    def _is_whole(self, text: str, start: int) -> bool:
        return any(text[start : start + length] in self._tokens for length in self._lengths)


def encode_rendered(text: str, mark: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a rendered conversation; special tokens are recognized except where the mark breaks them.

    Raises:
        TokenizerError: The text cannot be encoded.
    """
    segments = [*tokenizer.split_marked(text, mark)]
    encoded = iter(tokenizer.encode_segments(segment for segment in segments if isinstance(segment, str)))
    ids: list[int] = []
    for segment in segments:
        ids += next(encoded).tolist() if isinstance(segment, str) else [segment.id]
    return ids
