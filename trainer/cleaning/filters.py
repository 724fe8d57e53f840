"""Filters: functions of the user's that decide which documents stay."""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.system.checksums import file_sha256
from trainer.errors import TrainerError, UsageError

Filter = Callable[[str], bool | str]
"""Takes the text of a document; returns True where it stays, False where it leaves, or why it leaves."""

EMPTY = "no text"
"""Why a document without text leaves, before any filter."""


def load_filters(names: Sequence[str]) -> dict[str, Filter]:
    """The functions by their names, `module:function`; modules are looked for in the current folder too.

    Raises:
        UsageError: If there is no such function.
    """
    return {name: _load(name) for name in names}


def _load(name: str) -> Filter:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UsageError(f"--filter {name}: expected module:function, such as my_filters:is_english for my_filters.py")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # the module's own code may raise anything
        raise UsageError(f"--filter {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UsageError(f"--filter {name} is not a function: {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def hash_of_filter(name: str) -> str:
    """A hash of the file that a filter is in; empty where it is in none."""
    module = inspect.getmodule(_load(name))
    file = None if module is None else getattr(module, "__file__", None)
    return file_sha256(Path(file)) if file else ""


def reason_to_leave(text: str, filters: dict[str, Filter], place: str) -> str | None:
    """Why a document leaves: what the first filter says that refuses it, or its name; None if it stays.

    Raises:
        TrainerError: If a filter raises, or returns something else.
    """
    if not text or text.isspace():
        return EMPTY
    for name, function in filters.items():
        try:
            answer = function(text)
        except Exception as error:
            raise TrainerError(f"--filter {name} failed on {place}: {type(error).__name__}: {error}") from error
        if answer is True:
            continue
        if answer is False:
            return name
        if not isinstance(answer, str) or not answer:
            raise TrainerError(
                f"--filter {name} returned {answer!r} for {place}: True keeps a document, False or a reason drops it"
            )
        return f"{name}: {answer}"
    return None
