"""The process that renders templates: `python -m shared.chat.worker`.

It reads a request as a line of JSON, writes the answer as another, and ends with its standard input. The first line
has the templates. A template is a program that may loop for ever or build a text of any size; here it can use
`CPU_SECONDS` of processor time and `MEMORY_BYTES` of memory, and nothing but text leaves the process.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from jinja2 import Template, TemplateError

from shared.chat.environment import make_environment

CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 29
MAX_CHARACTERS = 16 << 20
_LONGEST_MESSAGE = 500


class _OutOfTimeError(BaseException):
    """Raised within the template when its time is over."""


def main() -> None:
    """Serve requests until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes standard input
    signal.signal(signal.SIGPROF, _stop)
    render = Templates(json.loads(sys.stdin.readline())).render
    for line in sys.stdin:
        sys.stdout.write(json.dumps(render(**json.loads(line))) + "\n")
        sys.stdout.flush()


class Templates:
    """Templates by name, each compiled when it is first used.

    Args:
        sources: Their texts.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._environment = make_environment()
        self._compiled: dict[str, Template] = {}

    def render(self, template: str, variables: Mapping[str, Any]) -> dict[str, str]:
        """Render one conversation.

        Returns:
            `text`, or `refusal` with what the template raised, or `error`.
        """
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            return self._render(template, variables)
        except TemplateError as error:
            return {"refusal" if type(error) is TemplateError else "error": _describe(error)}
        except _OutOfTimeError:
            return {"error": f"took more than {CPU_SECONDS:g} seconds of processor time"}
        except MemoryError:
            return {"error": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}
        except RecursionError:
            return {"error": "calls itself too often"}
        except Exception as error:  # anything that a template may do with the values of a request
            return {"error": f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _render(self, name: str, variables: Mapping[str, Any]) -> dict[str, str]:
        if name not in self._compiled:
            self._compiled[name] = self._environment.from_string(self._sources[name])
        parts, length = [], 0
        for part in self._compiled[name].generate(**variables):
            parts.append(part)
            length += len(part)
            if length > MAX_CHARACTERS:
                return {"error": f"wrote more than {MAX_CHARACTERS:,} characters"}
        return {"text": "".join(parts)}


def _describe(error: TemplateError) -> str:
    line = getattr(error, "lineno", None)
    return f"{error.message}"[:_LONGEST_MESSAGE] + (f" (line {line})" if line else "")


def _stop(_number: int, _frame: object) -> None:
    raise _OutOfTimeError


if __name__ == "__main__":
    main()
