"""Rendering conversations in the process of `worker.py`, which is ended where it takes too long."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.chat.errors import ChatTemplateError
from shared.chat.files import TemplateFile

Message = Mapping[str, Any]

_ROOT = Path(__file__).resolve().parents[2]  # what `shared` is imported from
_COMMAND = (sys.executable, "-m", "shared.chat.worker")
_WALL_SECONDS = 30.0  # the worker ends a template after 2 seconds of processor time; this is for one that hangs
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
        self._unread = b""

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
        text = self._ask(
            self.file.choose(with_tools=bool(tools)),
            {
                **self.file.variables,
                "messages": messages,
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **(variables or {}),
            },
        )
        return _up_to_final(text, messages) if continue_final_message else text

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ask(self, template: str, variables: Mapping[str, Any]) -> str:
        request = json.dumps({"template": template, "variables": variables}).encode() + b"\n"
        with self._lock:
            try:
                answer = self._exchange(request)
            except BaseException:
                self._end()
                raise
        if "text" in answer:
            return answer["text"]
        raise ChatTemplateError(
            f"the model's chat template refuses the conversation: {answer['refusal']}"
            if "refusal" in answer
            else f"the model's chat template failed: {answer['error']}"
        )

    def _exchange(self, request: bytes) -> dict[str, str]:
        deadline = time.monotonic() + _WALL_SECONDS
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = self._read_line(process, deadline)
        except BrokenPipeError:
            line = b""
        if not line:
            raise ChatTemplateError("the model's chat template failed: its process ended, probably for lack of memory")
        answer: dict[str, str] = json.loads(line)
        return answer

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

    def _read_line(self, process: "subprocess.Popen[bytes]", deadline: float) -> bytes:
        """The next line; empty if the process has ended."""
        assert process.stdout is not None
        parts: list[bytes] = []
        readable = select.poll()
        readable.register(process.stdout, select.POLLIN)
        while True:
            if not readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise ChatTemplateError(f"the model's chat template failed: took more than {_WALL_SECONDS:g} seconds")
            part = os.read(process.stdout.fileno(), _READ_BYTES)
            if not part:
                return b""
            parts.append(part)
            if part.endswith(b"\n"):  # it answers nothing but what it is asked
                return b"".join(parts)

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
