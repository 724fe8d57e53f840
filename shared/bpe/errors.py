"""The exceptions of this package; their messages are written for the person who reads them."""


class TokenizerError(ValueError):
    """A request that cannot be met, such as a damaged file, an unknown id, or a text that has no encoding."""


class TextTooLongError(TokenizerError):
    """Token ids stand for more bytes than the caller allows."""


class SurrogateError(TokenizerError):
    """A text holds a lone surrogate.

    Attributes:
        index: Which of several texts.
    """

    def __init__(self, message: str, index: int = 0):
        super().__init__(message)
        self.index = index


class TrainingStoppedError(TokenizerError):
    """Training was asked to stop."""


class SourceError(TokenizerError):
    """A source of text cannot be read, or is not UTF-8."""


class TooLongError(SourceError):
    """Text that must be in memory as a whole exceeds the memory limit.

    Args:
        name: The source.
        size: Bytes of the text.
        boundaries: Where such text could have been split.
    """

    def __init__(self, name: str, size: int, boundaries: str = "such as a space, or the end of a word"):
        self._given = name, size, boundaries
        super().__init__(
            f"{name} has {size:,} bytes without a place to split them ({boundaries}), which must be in memory together "
            "and exceed the memory limit. Raise --memory-limit, or remove what is not text"
        )

    def __reduce__(self) -> "tuple[type[TooLongError], tuple[str, int, str]]":
        """For processes, on this machine or another, whose error it is."""
        return type(self), self._given
