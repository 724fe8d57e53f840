"""Rendering conversations in the process of `worker.py`, which is ended where it takes too long."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shared.chat.answers import Span
from shared.chat.errors import ChatTemplateError
from shared.chat.files import TemplateFile

Message = Mapping[str, Any]


class Conversation(NamedTuple):
    """What a template renders.

    Attributes:
        messages: As for `ChatRenderer.render`.
        tools: The same.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None


class RenderedAnswers(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: Its text.
        answers: The spans of the assistant's answers in it.
    """

    text: str
    answers: list[Span]


_ROOT = Path(__file__).resolve().parents[2]  # what `shared` is imported from
_COMMAND = (sys.executable, "-m", "shared.chat.worker")
_WALL_SECONDS = 30.0  # without an answer: the worker ends a template after 2 of CPU time; this is for one that hangs
_END_SECONDS = 2.0
_READ_BYTES = 1 << 20


class ChatRenderer:
    """Renders conversations with a folder's templates. Any number of threads may share one; they take turns.

    The process starts with the first conversation, and again after a template has used up its time or memory.

    Args:
        file: The templates.
    """

    def __init__(self, file: TemplateFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation; blocks, at most for seconds.

        Args:
            messages: Each with `role`, `content` and what else the template may use; of JSON's types.
            tools: Descriptions of functions, as JSON schemas.
            add_generation_prompt: End with the start of the assistant's answer.
            continue_final_message: End within the last message, so that its text is continued.
            variables: More variables for the template; these come before the model's own, such as `bos_token`.

        Raises:
            ChatTemplateError: The template refuses the conversation, fails, or exceeds its time or memory.
        """
        variables = self._variables(messages, tools, add_generation_prompt, variables or {})
        [answer] = self._ask([variables], None)
        text: str = _checked(answer)["text"]
        return _up_to_final(text, messages) if continue_final_message else text

    def render_answers(
        self, conversations: Sequence[Conversation], marks: tuple[str, str], end_of_turn: str | None
    ) -> list["RenderedAnswers | ChatTemplateError"]:
        """Render conversations, and find the assistant's answers in each.

        Args:
            conversations: One after the other.
            marks: Two characters that occur neither in them nor in the template.
            end_of_turn: See `rendered_answers`.

        Returns:
            For each; the error where the template refuses it, or fails with it.

        Raises:
            ChatTemplateError: The template exceeds its time or memory.
        """
        variables = [self._variables(each.messages, each.tools, False, {}) for each in conversations]
        answers = self._ask(variables, marks, end_of_turn)
        return [_rendered(answer) for answer in answers]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _variables(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        variables = {
            **self.file.variables,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **more,
        }
        return {"template": self.file.choose(with_tools=bool(tools)), "variables": variables}

    def _ask(
        self, conversations: Sequence[Mapping[str, Any]], marks: tuple[str, str] | None, end_of_turn: str | None = None
    ) -> list[dict[str, Any]]:
        """The worker's answers; one that reports an exceeded limit raises."""
        request = {"conversations": conversations, "marks": marks, "end_of_turn": end_of_turn}
        with self._lock:
            try:
                return self._exchange(json.dumps(request).encode() + b"\n", len(conversations))
            except BaseException:
                self._end()
                raise

    def _exchange(self, request: bytes, count: int) -> list[dict[str, Any]]:
        process = self._running()
        assert process.stdin is not None
        lines: list[bytes] = []
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
            lines = self._read_lines(process, count)
        if not lines:
            raise ChatTemplateError("the model's chat template failed: its process ended, probably for lack of memory")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for answer in answers:
            if "limit" in answer:
                raise ChatTemplateError(f"the model's chat template failed: {answer['limit']}")
        return answers

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._end()
            search_path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    _COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": search_path},
                    process_group=0,
                )
            except OSError as error:
                raise ChatTemplateError(f"no process can be started for the chat template: {error.strerror}") from error
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(dict(self.file.templates)).encode() + b"\n")
        return self._process

    def _read_lines(self, process: "subprocess.Popen[bytes]", count: int) -> list[bytes]:
        """So many lines; none if the process has ended."""
        assert process.stdout is not None
        parts: list[bytes] = []
        missing = count
        readable = select.poll()
        readable.register(process.stdout, select.POLLIN)
        while missing:
            if not readable.poll(_WALL_SECONDS * 1000):
                raise ChatTemplateError(f"the model's chat template failed: took more than {_WALL_SECONDS:g} seconds")
            part = os.read(process.stdout.fileno(), _READ_BYTES)
            if not part:
                return []
            parts.append(part)
            missing -= part.count(b"\n")
        return b"".join(parts).splitlines()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_END_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with a text; raises what another one reports."""
    if "refusal" in answer:
        raise ChatTemplateError(f"the model's chat template refuses the conversation: {answer['refusal']}")
    if "error" in answer:
        raise ChatTemplateError(f"the model's chat template failed: {answer['error']}")
    return answer


def _rendered(answer: dict[str, Any]) -> RenderedAnswers | ChatTemplateError:
    try:
        found = _checked(answer)
    except ChatTemplateError as error:
        return error
    return RenderedAnswers(found["text"], [(begin, end) for begin, end in found["answers"]])


def _up_to_final(text: str, messages: Sequence[Message]) -> str:
    """The text up to the end of the last message, whose white space a template may have stripped."""
    final = _final_text(messages)
    start = text.rfind(final.strip())
    if start < 0:
        raise ChatTemplateError("continue_final_message: the chat template does not keep the text of the last message")
    kept = final.lstrip() if text.startswith(final.lstrip(), start) else final.strip()
    return text[: start + len(kept)]


def _final_text(messages: Sequence[Message]) -> str:
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
        content = texts[-1] if texts else None
    if not isinstance(content, str):
        raise ChatTemplateError("continue_final_message: the last message has no text")
    return content
