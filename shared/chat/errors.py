"""The error of this package."""


class ChatTemplateError(Exception):
    """A template cannot be used, or cannot render a conversation; the message says why."""
