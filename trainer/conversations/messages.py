"""From a record of a data set to the messages of a conversation, in one form whatever the data set's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.system.errors import short_repr
from trainer.text.utf8 import CorpusError

FIELDS = ("messages", "conversations", "prompt", "response", "tools")
"""What is read of a record."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
_MAX_DEPTH = 50
_MAY_BE_EMPTY = ("tool", "function")

EMPTY_SYSTEM = "an empty system message, which was left out"
AFTER_LAST_ANSWER = "messages after the last answer, which were left out"


class UnusableError(Exception):
    """A conversation that cannot be trained on.

    Attributes:
        kind: What is wrong, the same words for all such conversations.
        detail: What is wrong with this one.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Messages:
    """A conversation that ends with an answer of the assistant.

    Attributes:
        messages: Each with `role`, `content` and what else the record has for the template.
        tools: Descriptions of functions, if there are any.
        counted: For each answer, whether its loss counts.
        notes: What was left out of the record, in words that are the same for all records.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    counted: Sequence[bool]
    notes: Sequence[str]


def read_conversation(text: str, place: str) -> Messages:
    """The conversation of a record.

    It is in `messages` or `conversations`, a list of objects with `role` and `content`, as OpenAI has them, or with
    `from` and `value`, as ShareGPT has them; or else in `prompt` and `response`. An answer with the `weight` 0 is not
    learned from, as in OpenAI's files for fine-tuning.

    Args:
        text: JSON.
        place: Where it is, for messages.

    Raises:
        CorpusError: The record is not of such a form.
        UnusableError: The conversation cannot be trained on.
    """
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place} is not JSON: {error}") from None
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(record) > _MAX_DEPTH:
        raise UnusableError(f"more than {_MAX_DEPTH} levels of nesting")
    entries = _entries(record, place)
    messages = [_message(entry, place) for entry in entries]
    notes = []
    kept = [message for message in messages if message["role"] not in {"system", "developer"} or _has_text(message)]
    if len(kept) < len(messages):
        notes.append(EMPTY_SYSTEM)
    for message in kept:
        if not _has_text(message) and message["role"] not in _MAY_BE_EMPTY and not message.get("tool_calls"):
            raise UnusableError("an empty message", f"of the role {message['role']}")
    last = max((number for number, message in enumerate(kept) if message["role"] == "assistant"), default=-1)
    if last + 1 < len(kept) and last >= 0:
        notes.append(AFTER_LAST_ANSWER)
    kept = kept[: last + 1]
    counted = [message.pop("weight", 1) != 0 for message in kept if message["role"] == "assistant"]
    if not any(counted):
        raise UnusableError("no answer of the assistant")
    return Messages(kept, _tools(record), counted, notes)


def _entries(record: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(record, dict):
        raise CorpusError(f"{place} is not an object")
    for name in ("messages", "conversations"):
        entries = record.get(name)
        if entries is not None:
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise CorpusError(f"{place}: {name!r} must be a list of objects, got {short_repr(entries)}")
            return entries
    if "prompt" in record and "response" in record:
        pairs = (("user", record["prompt"]), ("assistant", record["response"]))
        return [{"role": role, "content": content} for role, content in pairs]
    there = ", ".join(map(short_repr, list(record)[:20])) or "none"
    raise CorpusError(
        f"{place} has no conversation: expected the field 'messages' or 'conversations', or 'prompt' and 'response'; "
        f"it has {there}"
    )


def _message(entry: dict[str, Any], place: str) -> dict[str, Any]:
    names = ("role", "content") if "role" in entry else ("from", "value")
    if names[0] not in entry:
        got = short_repr(entry)
        raise CorpusError(f"{place}: a message needs 'role' and 'content', or 'from' and 'value'; got {got}")
    role, content = (entry.get(name) for name in names)
    role = _SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        raise UnusableError("a message of an unknown role", short_repr(role))
    # A column of a table has every field for every message; those that a message lacks are null.
    others = {name: value for name, value in entry.items() if name not in names and value is not None}
    return {"role": role, "content": _text(content), **others}


def _text(content: Any) -> str | None:
    """A content as text; parts of text are joined by line breaks, as the service does."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        parts = [text for text in texts if isinstance(text, str)]
        if len(parts) < len(content):
            raise UnusableError("a content that is not text")
        content = "\n".join(parts)
    if content is not None and not isinstance(content, str):
        raise UnusableError("a content that is not text")
    return content


def _has_text(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return bool(content) and not content.isspace()


def _tools(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = record.get("tools")
    if isinstance(tools, str):  # a column of a table cannot hold objects of different fields
        try:
            tools = json.loads(tools)
        except ValueError:
            raise UnusableError("tools that are not a list of objects") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UnusableError("tools that are not a list of objects")
    return tools


def _depth(value: Any) -> int:
    """Levels of lists and objects within each other."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth
