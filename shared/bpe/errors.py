"""The one exception of this package."""


class TokenizerError(ValueError):
    """A request that cannot be met; its message is written for the person who made it."""
