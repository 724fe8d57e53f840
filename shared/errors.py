"""Errors in words, for people."""


def describe(error: Exception) -> str:
    """An error as a sentence: those that are written for people as they are, others with their type."""
    if isinstance(error, ValueError | OSError) and str(error):
        return str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}".rstrip(": ")
    return f"{type(error).__name__}: {error}".rstrip(": ")
