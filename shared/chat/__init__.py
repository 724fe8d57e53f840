"""Conversations as a model reads them: chat templates, rendered in a process of their own, and encoded.

What a template writes may be special tokens; what is in a message never is.
"""

from shared.chat.answers import find_end_of_turn
from shared.chat.default import DEFAULT_SPECIAL_TOKENS, DEFAULT_TEMPLATE
from shared.chat.errors import ChatTemplateError
from shared.chat.files import TemplateFile, read_template, read_templates, role_variables, write_templates
from shared.chat.protection import Protection, encode_rendered
from shared.chat.renderer import ChatRenderer, Conversation, RenderedAnswers

__all__ = [
    "DEFAULT_SPECIAL_TOKENS",
    "DEFAULT_TEMPLATE",
    "ChatRenderer",
    "ChatTemplateError",
    "Conversation",
    "Protection",
    "RenderedAnswers",
    "TemplateFile",
    "encode_rendered",
    "find_end_of_turn",
    "read_template",
    "read_templates",
    "role_variables",
    "write_templates",
]
