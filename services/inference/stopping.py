"""Find stop strings in text that arrives in pieces, without ever letting out a part of one."""

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete.

    The stop string whose last character comes first ends the text; of several that end on the same character, the
    longest does. So the result does not depend on how the text is cut into pieces. Only text that may still become a
    stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece, and return the text that is certain not to belong to a stop string.

        Once `matched` is set the text has ended, and nothing more comes out.
        """
        if self.matched is not None or not text:
            return ""
        pending = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := pending.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return pending[:start]
        certain = len(pending) - self._num_held(pending)
        self._held = pending[certain:]
        return pending[:certain]

    def finish(self) -> str:
        """Return the text that was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, pending: str) -> int:
        """The length of the longest end of `pending` that a stop string begins with."""
        longest = min(len(pending), max(map(len, self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            end = pending[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
