"""One choice as it is generated: tokens become text, and a stop string ends it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.inference.engine import FinishReason, TokenEvent, TokenLogprobs
from services.inference.generation.stop_strings import StopMatcher, StopStrings
from shared.bpe import StreamDecoder, Tokenizer


@dataclass(slots=True)
class Delta:
    """What was added to a choice since its last delta; the final one has the finish reason.

    Attributes:
        index: The choice.
        text: The new text; starts with the prompt where it is echoed.
        tokens: The ids whose text, or the start of it, has been released by now.
        offsets: For each of `tokens`, where its text starts, in characters of the generated text.
        logprobs: For each of `tokens`, or empty.
        prompt_logprobs: Of the prompt's tokens except the first, once, if requested.
        finish_reason: "stop" or "length".
        stop_reason: The stop string, or the id of the token, that ended the choice.
    """

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def extend(self, other: "Delta") -> None:
        """Append the next delta of the same choice."""
        self.text += other.text
        self.tokens += other.tokens
        self.offsets += other.offsets
        self.logprobs += other.logprobs
        if other.prompt_logprobs is not None:
            self.prompt_logprobs = other.prompt_logprobs
        self.finish_reason, self.stop_reason = other.finish_reason, other.stop_reason


class Detokenizer:
    """Turns the tokens of one sequence into deltas of a choice.

    Decoding starts after the prompt: bytes that would complete a character of the prompt become U+FFFD. The text of
    special tokens is omitted; those in `special_stops` end the choice. A stop string ends it where it becomes complete
    after the first `min_tokens` tokens, wherever it started.

    Args:
        index: The choice.
        tokenizer: The model's.
        stops: Stop strings.
        special_stops: Those of them that are special tokens, by id.
        min_tokens: Tokens before which no stop string ends the choice.
        continues: Whether the prompt has text.
        splits_characters: Whether tokens are released although their bytes are no whole character yet. Text is not,
            and no token is that may belong to a stop string.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stops: StopStrings,
        special_stops: dict[int, str],
        min_tokens: int,
        *,
        continues: bool = True,
        splits_characters: bool = False,
    ) -> None:
        self._index = index
        self._splits_characters = splits_characters and stops.is_ascii
        self._decoder = StreamDecoder(tokenizer, skip_special_tokens=True, continues=continues)
        self._matcher = StopMatcher(stops)
        self._special_stops = special_stops
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._num_decoded = 0  # characters
        self._num_released = 0  # characters
        self._pending = Delta(index)  # tokens that are not released

    def skip(self, tokens: Sequence[int]) -> None:
        """Take the first tokens of the choice, which were released before with their text."""
        self._matcher.skip(self._decoder.skip(tokens))
        self._num_tokens += len(tokens)

    def feed(self, event: TokenEvent) -> Delta | None:
        """Take one token; return a delta if anything is released or the choice is finished, else None.

        The choice may end here by a stop string while its sequence still runs.
        """
        pending = self._pending
        start, text = self._decode(event)
        pending.tokens.append(event.token)
        pending.offsets.append(start)
        if event.logprobs is not None:
            pending.logprobs.append(event.logprobs)
        pending.text = self._release(text, event)
        self._num_released += len(pending.text)
        if self._matcher.matched is not None:
            pending.finish_reason, pending.stop_reason = "stop", self._matcher.matched
            self._split(pending)
            return pending
        if event.finish_reason is not None:
            pending.finish_reason = event.finish_reason
            if event.finish_reason == "stop":
                pending.stop_reason = self._special_stops.get(event.token, event.token)
            return pending
        if self._splits_characters and not self._matcher.num_held:
            self._pending = Delta(self._index)
            return pending
        if not pending.text:
            return None
        self._pending = self._split(pending) if start >= self._num_released else Delta(self._index)
        return pending

    def _decode(self, event: TokenEvent) -> tuple[int, str]:
        """Return where this token's text starts, and the text that no later byte can change any more."""
        if event.finish_reason == "stop":  # a token that ends the choice is not part of its text: it comes after it
            text = self._decoder.finish()
            return self._num_decoded + len(text), text
        text = self._decoder.feed(event.token)
        if event.finish_reason is not None:
            text += self._decoder.finish()
        return self._decoder.start, text

    def _release(self, text: str, event: TokenEvent) -> str:
        """Return the text that cannot become part of a stop string any more."""
        self._num_tokens += 1
        self._num_decoded += len(text)
        text = self._matcher.feed(text, may_end=self._num_tokens > self._min_tokens)
        if event.finish_reason is not None:
            text += self._matcher.finish()
        return text

    def _split(self, delta: Delta) -> Delta:
        """Move the tokens of `delta` whose text is not released into a new delta, and return that."""
        count = len(delta.tokens)
        while count and delta.offsets[count - 1] >= self._num_released:
            count -= 1
        rest = Delta(
            self._index, tokens=delta.tokens[count:], offsets=delta.offsets[count:], logprobs=delta.logprobs[count:]
        )
        del delta.tokens[count:], delta.offsets[count:], delta.logprobs[count:]
        return rest
