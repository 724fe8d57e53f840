"""Records of any kind: a conversation, or one of the two errors."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.conversations.messages import UnusableError, read_conversation
from trainer.text.utf8 import CorpusError

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
_ROLES = st.sampled_from(["user", "assistant", "system", "human", "gpt", "tool", "bot", 1, None])
_CONTENTS = _VALUES | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _VALUES}), max_size=3)
_ENTRIES = (
    st.fixed_dictionaries({"role": _ROLES, "content": _CONTENTS}, optional={"weight": _VALUES, "tool_calls": _VALUES})
    | st.fixed_dictionaries({"from": _ROLES, "value": _CONTENTS})
    | _VALUES
)
_RECORDS = (
    st.fixed_dictionaries({"messages": st.lists(_ENTRIES, max_size=5)}, optional={"tools": _VALUES})
    | st.fixed_dictionaries({"conversations": st.lists(_ENTRIES, max_size=5)})
    | st.fixed_dictionaries({"prompt": _VALUES, "response": _VALUES})
    | _VALUES
)


@settings(max_examples=60)
@given(_RECORDS)
def test_any_record(record: Any) -> None:
    try:
        found = read_conversation(json.dumps(record), "line 1")
    except (CorpusError, UnusableError):
        return
    answers = [message for message in found.messages if message["role"] == "assistant"]
    assert len(answers) == len(found.counted) >= 1
    assert any(found.counted)
    assert found.messages[-1]["role"] == "assistant"
    assert all(isinstance(message["content"], str | None) for message in found.messages)


@settings(max_examples=30)
@given(st.text(max_size=20) | st.sampled_from(["[" * 9000, '{"a":' * 9000, "NaN", "1e999"]))
def test_any_text(text: str) -> None:
    with pytest.raises((CorpusError, UnusableError)):
        read_conversation(text, "line 1")
