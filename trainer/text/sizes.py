"""Sizes as options spell them. Apart from the readers, since it loads nothing: every command imports it."""

from trainer.errors import UsageError

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes in a number such as `500M`, `8G` or `1_000_000`; units are powers of 1024.

    Raises:
        UsageError: If it is not such a number.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(number[-1:], 1)
    try:
        size = int(float(number.rstrip("KMGT")) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise UsageError(f"{text!r} is not a size; use 500M, 8G or a number of bytes")
    return size


def parse_limit(text: str | None) -> int | None:
    """`parse_size` of an option that may not be set."""
    return None if text is None else parse_size(text)
