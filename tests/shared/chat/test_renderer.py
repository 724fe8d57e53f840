"""Rendering: equal to transformers, and bounded."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from shared.chat import ChatRenderer, ChatTemplateError
from tests.shared.chat.templates import CHATML, TEMPLATES

Make = Callable[..., ChatRenderer]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "  Who lost the hat?\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>Hi</b> & “bye” \u2028 é"}],
    "turns": [
        {"role": "user", "content": "Hi", "name": "Anna"},
        {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nHello"},
        {"role": "user", "content": "{{ 7 * 7 }} {% if %}"},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": {}}}}}]


def theirs(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """What transformers renders."""
    rendered, _ = render_jinja_template([messages], chat_template=template, **VARIABLES, **options)
    assert isinstance(rendered[0], str)
    return rendered[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(renderer: Make, name: str) -> None:
    ours = renderer(TEMPLATES[name], **VARIABLES)
    for messages in CONVERSATIONS.values():
        if name == "instruction" and messages[0]["role"] == "system":
            continue
        for options in ({}, {"add_generation_prompt": True}, {"tools": TOOLS}):
            assert ours.render(messages, **options) == theirs(TEMPLATES[name], messages, **options)


def test_equals_transformers_with_variables_and_within_the_last_message(renderer: Make) -> None:
    ours = renderer(TEMPLATES["thinking"])
    question = CONVERSATIONS["question"]
    rendered = ours.render(question, add_generation_prompt=True, variables={"enable_thinking": False})
    assert rendered == theirs(TEMPLATES["thinking"], question, add_generation_prompt=True, enable_thinking=False)
    for content in ("It was", " It was ", "It was \n"):
        messages = [*question, {"role": "assistant", "content": content}]
        for template in (CHATML, TEMPLATES["thinking"]):
            expected = theirs(template, messages, continue_final_message=True)
            assert renderer(template).render(messages, continue_final_message=True) == expected


def test_a_template_refuses_in_its_own_words(renderer: Make) -> None:
    with pytest.raises(ChatTemplateError, match="refuses the conversation: roles must alternate"):
        renderer(TEMPLATES["instruction"], **VARIABLES).render([{"role": "assistant", "content": "Hi"}])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "2 seconds of CPU time"),
        ("{% set n = namespace(x='ab') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "512 MiB"),
        ("{{ 'a' * 10 ** 12 }}", "512 MiB"),
        ("{{ 'a' | center(10 ** 12) }}", "512 MiB"),
        ("{{ '%999999999999d' | format(1) }}", "512 MiB"),
        ("{% for a in range(99999) %}{{ 'abcdefgh' * 99 }}{% endfor %}", "16,777,216 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too often"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os }}", "unsafe"),
        ("{{ messages[0]['content'].format_map(messages[0]) }}{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% if %}", r"\(line 1\)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[9].content }}", "no element 9"),
    ],
)
def test_what_a_template_may_not_do_ends_in_an_error(renderer: Make, template: str, reason: str) -> None:
    ours = renderer(template)
    with pytest.raises(ChatTemplateError, match=reason):
        ours.render([{"role": "user", "content": "Hi"}])


def test_a_process_that_ends_is_replaced(renderer: Make) -> None:
    ours = renderer(CHATML)
    first = ours.render(CONVERSATIONS["question"])
    assert ours._process is not None
    ours._process.kill()
    ours._process.wait()
    assert ours.render(CONVERSATIONS["question"]) == first
    ours.close()
    assert ours.render(CONVERSATIONS["question"]) == first


def test_a_process_that_ends_while_it_renders_is_an_error(renderer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = renderer(CHATML)
    monkeypatch.setattr("shared.chat.renderer._COMMAND", ("sh", "-c", "read templates; read request"))
    with pytest.raises(ChatTemplateError, match="its process ended"):
        ours.render(CONVERSATIONS["question"])
    monkeypatch.undo()
    assert ours.render(CONVERSATIONS["question"]) == theirs(CHATML, CONVERSATIONS["question"])


def test_threads_take_turns(renderer: Make) -> None:
    ours = renderer(CHATML)
    found: dict[int, str] = {}

    def work(number: int) -> None:
        for _ in range(20):
            found[number] = ours.render([{"role": "user", "content": f"number {number}" * 500}])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(text == theirs(CHATML, [{"role": "user", "content": f"number {n}" * 500}]) for n, text in found.items())
    assert len(found) == 8
