"""Jinja as Hugging Face's templates expect it: what transformers' `apply_chat_template` gives them, and no more.

After the documentation at https://huggingface.co/docs/transformers/chat_templating_writing.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment in which chat templates are compiled.

    Attributes:
        generation_marks: What is written before and after the text of each `{% generation %}` block.
        has_generation: Whether a template with such a block was compiled since this was last set to False.
    """

    generation_marks = ("", "")
    has_generation = False


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model writes; the text itself is the same without it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way
    environment: ChatEnvironment

    def parse(self, parser: Parser) -> nodes.Node:
        self.environment.has_generation = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        begin, end = self.environment.generation_marks
        return begin + caller() + end


def make_environment() -> ChatEnvironment:
    """A new environment."""
    environment = ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().astimezone().strftime(layout)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes what HTML would read."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))
