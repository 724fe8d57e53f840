"""The fields of a conversation, which all routes that take one have in common."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, JsonValue, Tag

from services.inference.generation.chat import Conversation
from services.inference.generation.request import NullIsAbsent, one_or_list
from shared.http import ApiError

_MAX_MESSAGES = 2048
_MAX_PARTS = 2048
_MAX_VARIABLES = 64
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def _not_reserved(variables: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name in _RESERVED & variables.keys():
        raise ValueError(f"{name} is not allowed: a field of the request sets it")
    return variables


class TextPart(NullIsAbsent):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(NullIsAbsent):
    """A message. What it spells is text: it holds no special token."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("(one)")]
        | Annotated[list[TextPart], Field(max_length=_MAX_PARTS, fail_fast=True), Tag("(list)")],
        Discriminator(one_or_list),
    ] = Field(description="Text, or parts of text, which are joined by line breaks")
    name: str | None = Field(None, max_length=256, description="For templates that write names")

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)]
"""A conversation, oldest message first."""


class ConversationFields(NullIsAbsent):
    """How the chat template renders messages."""

    add_generation_prompt: bool | None = Field(
        None,
        description="vLLM's: end the prompt with the start of an answer; default: unless the last message is continued",
    )
    continue_final_message: bool | None = Field(None, description="vLLM's: continue the text of the last message")
    chat_template_kwargs: (
        Annotated[dict[str, JsonValue], Field(max_length=_MAX_VARIABLES), AfterValidator(_not_reserved)] | None
    ) = Field(None, description="vLLM's: more variables of the chat template, such as enable_thinking")

    def conversation(self, messages: Messages) -> Conversation:
        """The messages with how they are rendered.

        Raises:
            ApiError: 400, for two fields that contradict each other.
        """
        continues = bool(self.continue_final_message)
        if continues and self.add_generation_prompt:
            message = "add_generation_prompt: not possible with continue_final_message, which starts no new answer"
            raise ApiError(400, message, param="add_generation_prompt")
        return Conversation(
            [
                {"role": message.role, "content": message.text, **({"name": message.name} if message.name else {})}
                for message in messages
            ],
            add_generation_prompt=not continues if self.add_generation_prompt is None else self.add_generation_prompt,
            continue_final_message=continues,
            variables=self.chat_template_kwargs,
        )
