"""Published chat templates, from the package `trl`: rendered as transformers renders them."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import pytest

from shared.chat import ChatRenderer, ChatTemplateError, TemplateFile

pytestmark = pytest.mark.slow

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A town", "enum": ["Paris", "Zürich"]}},
            "required": ["place"],
        },
    },
}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"place": "Paris"}}}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "  Who lost <b>the</b> hat?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nAnna, “she” said."}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [QUESTION],
    [SYSTEM, QUESTION],
    [QUESTION, ANSWER],
    [SYSTEM, QUESTION, ANSWER, QUESTION],
    [QUESTION, {"role": "assistant", "content": "Anna", "reasoning_content": "Hm."}, QUESTION],
    [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "Rain"},
        {"role": "assistant", "content": "It rains."},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    [ANSWER],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "tools": [WEATHER]},
    {"add_generation_prompt": True, "enable_thinking": False},
]


def published() -> Iterator[Path]:
    try:
        files = metadata.files("trl") or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.suffix == ".jinja":
            yield Path(str(file.locate()))


def theirs(template: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """What transformers renders; None where the template refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, **VARIABLES, **options)
    except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ValueError):
        return None
    assert isinstance(rendered[0], str)
    return rendered[0]


def ours(renderer: ChatRenderer, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    names = ("add_generation_prompt", "tools")
    known = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    try:
        return renderer.render(messages, **known, variables=others)
    except ChatTemplateError:
        return None


def test_all_are_rendered_as_transformers_does() -> None:
    files = [*published()]
    if not files:
        pytest.skip("trl is not installed: pip install -c constraints.txt -e '.[clients]'")
    assert len(files) >= 20
    num_rendered = 0
    for file in files:
        template = file.read_text(encoding="utf-8")
        renderer = ChatRenderer(TemplateFile({"default": template}, VARIABLES))
        try:
            for messages in CONVERSATIONS:
                for options in OPTIONS:
                    expected = theirs(template, messages, options)
                    assert ours(renderer, messages, options) == expected, (file.name, messages, options)
                    num_rendered += expected is not None
        finally:
            renderer.close()
    print(f"\n{len(files)} templates, {num_rendered} conversations rendered")
    assert num_rendered > 10 * len(files)
