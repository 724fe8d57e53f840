"""Integer options: cyclopts silently rounds 2.9 to 3; this refuses it."""

from decimal import Decimal, InvalidOperation
from typing import get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Token


def refuse_fractions(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Check that every integer option has an integer (cyclopts calls this, after the sources of values).

    Raises:
        CycloptsError: names the option, the value and its source.
    """
    for argument in arguments:
        if int in {argument.hint, *get_args(argument.hint)}:
            for token in argument.tokens:
                if not _is_whole(token.value):
                    raise CycloptsError(msg=f"{_place(token)} must be a whole number; got {token.value}")


def _is_whole(value: str) -> bool:
    """Whether conversion keeps the value; what is not a decimal number is left to cyclopts, which refuses it."""
    try:
        return "." not in value or int(float(value)) == Decimal(value)
    except (InvalidOperation, ValueError, OverflowError):
        return True


def _place(token: Token) -> str:
    name = (token.keyword or "").strip("[]")
    return name if token.source == "cli" else f"{token.source}: {name}"
