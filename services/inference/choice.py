"""One answer as it grows: tokens become text, stop strings end it, log-probabilities are spelled out."""

from dataclasses import dataclass, field

from services.inference.engine import FinishReason, TokenEvent
from services.inference.schemas import TokenLogprob, TopLogprob
from services.inference.stopping import StopMatcher
from shared.bpe import StreamDecoder, Tokenizer


@dataclass(slots=True)
class Delta:
    """What was added to an answer since the last delta; the last one has the finish reason."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def extend(self, other: "Delta") -> None:
        """Take what came next into this one."""
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        self.finish_reason, self.stop_reason = other.finish_reason, other.stop_reason


class Choice:
    """Turns the events of one row into deltas.

    The decoder starts afresh after the prompt: bytes that would complete a character of the prompt come out as U+FFFD.
    The text of special tokens is left out; those named in `special_stops` are tokens that end the answer.
    """

    def __init__(self, tokenizer: Tokenizer, stops: list[str], special_stops: dict[int, str]) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
        self._matcher = StopMatcher(stops)
        self._special_stops = special_stops
        self._pending = Delta()

    def feed(self, event: TokenEvent) -> Delta | None:
        """Take one token; return a delta where there is new text or the answer is finished, else None.

        The answer may end here by a stop string while the row itself would go on.
        """
        delta = self._pending
        delta.tokens.append(event.token)
        if event.logprobs is not None:
            top = [self._top(token, value) for token, value in event.logprobs.top]
            delta.logprobs.append(
                TokenLogprob(**self._top(event.token, event.logprobs.chosen).model_dump(), top_logprobs=top)
            )
        if event.finish_reason != "stop":  # a token that ends the answer is not part of its text
            delta.text += self._matcher.feed(self._decoder.feed(event.token))
        if event.finish_reason is not None:
            delta.text += self._matcher.feed(self._decoder.finish())
        if self._matcher.matched is not None:
            delta.finish_reason, delta.stop_reason = "stop", self._matcher.matched
        elif event.finish_reason is not None:
            delta.text += self._matcher.finish()
            delta.finish_reason = event.finish_reason
            if event.finish_reason == "stop":
                delta.stop_reason = self._special_stops.get(event.token, event.token)
        if not delta.text and delta.finish_reason is None:
            return None
        self._pending = Delta()
        return delta

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._tokenizer.token_bytes(token)
        return TopLogprob(id=token, token=data.decode("utf-8", errors="replace"), bytes=list(data), logprob=logprob)
