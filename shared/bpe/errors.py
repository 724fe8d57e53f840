"""The exceptions of this package."""


class TokenizerError(ValueError):
    """A request that cannot be met; its message is written for the person who made it."""


class TextTooLongError(TokenizerError):
    """Token ids stand for more bytes than the caller allows."""
