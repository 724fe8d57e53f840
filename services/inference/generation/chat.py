"""Conversations of a served model: its chat template turns messages into a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.bpe import Tokenizer, TokenizerError
from shared.chat import (
    ChatRenderer,
    ChatTemplateError,
    Protection,
    encode_rendered,
    find_end_of_turn,
    read_templates,
)
from shared.http import ApiError
from shared.lm import ModelDescription


@dataclass(frozen=True)
class Conversation:
    """What a prompt is made of.

    Attributes:
        messages: As OpenAI has them; of JSON's types.
        add_generation_prompt: End with the start of the assistant's answer.
        continue_final_message: End within the last message.
        variables: More variables for the template.
    """

    messages: Sequence[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] | None = None


class Chat:
    """The chat template of a model.

    Args:
        renderer: Renders it.
        tokenizer: The model's.

    Attributes:
        end_of_turn: The special token that the template writes after an answer; it ends what is generated.
    """

    def __init__(self, renderer: ChatRenderer, tokenizer: Tokenizer) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        end_of_turn = find_end_of_turn(renderer.render, tokenizer)
        self.end_of_turn = None if end_of_turn is None else end_of_turn.id

    def encode(self, conversation: Conversation) -> list[int]:
        """The ids of a conversation; blocks while the template is rendered.

        Raises:
            ApiError: 400, the template refuses the conversation or fails.
        """
        try:
            return self._encode(conversation)
        except (ChatTemplateError, TokenizerError) as error:
            raise ApiError(400, f"messages: {error}", param="messages", code="chat_template_failed") from error

    def close(self) -> None:
        """End the renderer's process."""
        self._renderer.close()

    def _encode(self, conversation: Conversation) -> list[int]:
        sources = "".join(self._renderer.file.templates.values())
        messages = conversation.messages
        if "developer" not in sources:  # OpenAI's newer name of the system's messages
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        given = [messages, conversation.variables or {}]
        protection = Protection(self._tokenizer.special_tokens, given, sources)
        messages, variables = protection.protect(given)
        text = self._renderer.render(
            messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=variables,
        )
        return encode_rendered(text, protection.mark, self._tokenizer)


def open_chat(folder: ModelDescription) -> Chat | None:
    """The chat template of a folder; None where it has none.

    Raises:
        ChatTemplateError: Its file cannot be read.
    """
    file = read_templates(folder.path)
    return None if file is None else Chat(ChatRenderer(file), folder.tokenizer)
