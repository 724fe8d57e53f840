"""The process that renders templates: `python -m shared.chat.worker`.

It reads a request as a line of JSON, writes the answer to each of its conversations as another, and ends with its
standard input. The first line has the templates. A template is a program that may loop for ever or build a text of any
size; here it can use `CPU_SECONDS` of CPU time for a conversation and `MEMORY_BYTES` of memory, and nothing but
text leaves the process.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateError

from shared.chat.answers import marked_answers, rendered_answers
from shared.chat.environment import make_environment

CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 29
MAX_CHARACTERS = 16 << 20
_LONGEST_MESSAGE = 500
_PIPE_BYTES = 1 << 16


class _OutOfTimeError(BaseException):
    """Raised within the template when its time is over."""


class _TooLongError(Exception):
    """The template has written too much."""


_LIMITS: Mapping[type[BaseException], str] = {
    _OutOfTimeError: f"took more than {CPU_SECONDS:g} seconds of CPU time",
    MemoryError: f"needs more than {MEMORY_BYTES >> 20} MiB of memory",
    _TooLongError: f"wrote more than {MAX_CHARACTERS:,} characters",
}


def main() -> None:
    """Serve requests until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes standard input
    signal.signal(signal.SIGPROF, _stop)
    templates = Templates(json.loads(sys.stdin.readline()))
    with os.fdopen(sys.stdout.fileno(), "wb", buffering=_PIPE_BYTES, closefd=False) as output:
        for line in sys.stdin:
            for answer in map(json.dumps, templates.answers(**json.loads(line))):
                output.write(answer.encode() + b"\n")
            output.flush()


class Templates:
    """Templates by name, each compiled when it is first used.

    Args:
        sources: Their texts.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._environment = make_environment()
        self._compiled: dict[str, tuple[Template, bool]] = {}

    def answers(
        self, conversations: Sequence[Mapping[str, Any]], marks: Sequence[str] | None, end_of_turn: str | None
    ) -> "map[dict[str, Any]]":
        """Render conversations.

        Args:
            conversations: For each the name of its `template` and the `variables`.
            marks: Two characters that occur in no conversation: find the assistant's answers. None: the text alone.
            end_of_turn: See `rendered_answers`.

        Returns:
            `text`, with `answers` where they were asked for; or `refusal` with what the template raised; or `error`, or
            `limit` with the limit that it exceeded, as then do all that follow.
        """
        exceeded: dict[str, Any] = {}

        def answer(conversation: Mapping[str, Any]) -> dict[str, Any]:
            if exceeded:  # else each of the others would take as long
                return exceeded
            found = self._bounded(lambda: self._answer(**conversation, marks=marks, end_of_turn=end_of_turn))
            if "limit" in found:
                exceeded.update(found)
            return found

        return map(answer, conversations)

    def _bounded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            return work()
        except TemplateError as error:
            return {"refusal" if type(error) is TemplateError else "error": _describe(error)}
        except (_OutOfTimeError, MemoryError, _TooLongError) as error:
            return {"limit": _LIMITS[type(error)]}
        except RecursionError:
            return {"error": "calls itself too often"}
        except Exception as error:  # anything that a template may do with the values of a request
            return {"error": f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _answer(
        self, template: str, variables: Mapping[str, Any], marks: Sequence[str] | None, end_of_turn: str | None
    ) -> dict[str, Any]:
        if template not in self._compiled:
            self._environment.has_generation = False
            compiled = self._environment.from_string(self._sources[template])
            self._compiled[template] = (compiled, self._environment.has_generation)
        program, has_generation = self._compiled[template]
        text = _render(program, variables)
        if marks is None:
            return {"text": text}
        if not has_generation:
            spans = rendered_answers(lambda values: _render(program, values), text, variables, end_of_turn)
            return {"text": text, "answers": spans}
        begin, end = marks
        self._environment.generation_marks = (begin, end)
        try:
            marked = _render(program, variables)
        finally:
            self._environment.generation_marks = ("", "")
        return {"text": text, "answers": marked_answers(text, marked, begin, end)}


def _render(template: Template, variables: Mapping[str, Any]) -> str:
    parts, length = [], 0
    for part in template.generate(**variables):
        parts.append(part)
        length += len(part)
        if length > MAX_CHARACTERS:
            raise _TooLongError
    return "".join(parts)


def _describe(error: TemplateError) -> str:
    line = getattr(error, "lineno", None)
    return f"{error.message}"[:_LONGEST_MESSAGE] + (f" (line {line})" if line else "")


def _stop(_number: int, _frame: object) -> None:
    raise _OutOfTimeError


if __name__ == "__main__":
    main()
