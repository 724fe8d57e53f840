"""One answer as it grows: tokens become text, stop strings end it, and what they cut off is left out."""

from dataclasses import dataclass, field

from services.inference.engine import FinishReason, TokenEvent, TokenLogprobs
from services.inference.generation.stop_strings import StopMatcher, StopStrings
from shared.bpe import StreamDecoder, Tokenizer


@dataclass(slots=True)
class Delta:
    """What was added to an answer since the last delta; the last one has the finish reason.

    Attributes:
        text: The prompt first, where it is echoed.
        tokens: The ids whose text, or its beginning, is in what has gone out by now.
        offsets: For each of `tokens`, where its text begins, in characters of the generated text.
        logprobs: For each of `tokens`, or empty.
        prompt_logprobs: Of the prompt's tokens but the first, once, where they were asked for.
        finish_reason: "stop" or "length".
        stop_reason: The stop string, or the id of the token, that ended the answer.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def extend(self, other: "Delta") -> None:
        """Take what came next into this one."""
        self.text += other.text
        self.tokens += other.tokens
        self.offsets += other.offsets
        self.logprobs += other.logprobs
        if other.prompt_logprobs is not None:
            self.prompt_logprobs = other.prompt_logprobs
        self.finish_reason, self.stop_reason = other.finish_reason, other.stop_reason


class Choice:
    """Turns the tokens of one row into deltas.

    The decoder starts afresh after the prompt: bytes that would complete a character of the prompt come out as U+FFFD.
    The text of special tokens is left out; those named in `special_stops` are tokens that end the answer. A stop string
    ends it where it becomes complete after the first `min_tokens` tokens, wherever it began.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: StopStrings, special_stops: dict[int, str], min_tokens: int = 0
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
        self._matcher = StopMatcher(stops)
        self._special_stops = special_stops
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._decoded = 0  # characters that the decoder gave
        self._released = 0  # characters that went out
        self._pending = Delta()  # tokens that have not

    def feed(self, event: TokenEvent) -> Delta | None:
        """Take one token; return a delta where there is new text or the answer is finished, else None.

        The answer may end here by a stop string while the row itself would go on.
        """
        pending = self._pending
        start, text = self._decode(event)
        pending.tokens.append(event.token)
        pending.offsets.append(start)
        if event.logprobs is not None:
            pending.logprobs.append(event.logprobs)
        pending.text = self._release(text, event)
        self._released += len(pending.text)
        if self._matcher.matched is not None:
            pending.finish_reason, pending.stop_reason = "stop", self._matcher.matched
            self._hold_back(pending)
            return pending
        if event.finish_reason is not None:
            pending.finish_reason = event.finish_reason
            if event.finish_reason == "stop":
                pending.stop_reason = self._special_stops.get(event.token, event.token)
            return pending
        if not pending.text:
            return None
        self._pending = self._hold_back(pending) if start >= self._released else Delta()
        return pending

    def _decode(self, event: TokenEvent) -> tuple[int, str]:
        """Where this token's text begins, and the text that it makes certain."""
        if event.finish_reason == "stop":  # a token that ends the answer is not part of its text: it comes after it
            text = self._decoder.finish()
            return self._decoded + len(text), text
        text = self._decoder.feed(event.token)
        if event.finish_reason is not None:
            text += self._decoder.finish()
        return self._decoder.start, text

    def _release(self, text: str, event: TokenEvent) -> str:
        """What is certain to be part of the answer, now that this token has added a text."""
        self._num_tokens += 1
        self._decoded += len(text)
        text = self._matcher.feed(text, may_end=self._num_tokens > self._min_tokens)
        if event.finish_reason is not None:
            text += self._matcher.finish()
        return text

    def _hold_back(self, delta: Delta) -> Delta:
        """Take the tokens out of `delta` whose text has not gone out, and return them."""
        kept = len(delta.tokens)
        while kept and delta.offsets[kept - 1] >= self._released:
            kept -= 1
        held = Delta(tokens=delta.tokens[kept:], offsets=delta.offsets[kept:], logprobs=delta.logprobs[kept:])
        del delta.tokens[kept:], delta.offsets[kept:], delta.logprobs[kept:]
        return held
