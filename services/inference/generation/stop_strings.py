"""Find stop strings in text that arrives in pieces, without ever letting out a part of one."""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of Aho and Corasick (1975, doi 10.1145/360825.360855) over stop strings; shared by all choices.

    State 0 is the root; a state is the longest end of the text so far that a stop string begins with. A character costs
    a step or two, however many and long they are.

    Attributes:
        open: For each state, how many characters at the text's end may still become a stop string.
        found: For each state, the longest stop string that ends in it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.open = [0]
        self.found: list[str | None] = [None]
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the state of the longest proper end of this one's text
        for stop in stops:
            self._add(stop)
        self._link()

    def __bool__(self) -> bool:
        return len(self.found) > 1

    def can_begin(self, text: str) -> bool:
        """Whether a stop string may begin in this text."""
        return not self._next[0].keys().isdisjoint(text)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._shorter[state]

    def _add(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, 1):
            following = self._next[state].get(character)
            if following is None:
                following = len(self.found)
                self._next[state][character] = following
                self._next.append({})
                self.open.append(depth)
                self.found.append(None)
                self._shorter.append(0)
            state = following
        self.found[state] = stop

    def _link(self) -> None:
        """Breadth first, so that shorter states are complete before those that point to them."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            self.found[state] = self.found[state] or self.found[self._shorter[state]]
            if not self._next[state]:  # no stop string is longer: one that begins later may still come
                self.open[state] = self.open[self._shorter[state]]
            for character, following in self._next[state].items():
                self._shorter[following] = self.step(self._shorter[state], character)
                states.append(following)


class StopMatcher:
    """Passes text through until a stop string is complete.

    The stop string whose last character comes first ends the text; of several that end on the same character, the
    longest does. So the result does not depend on how the text is cut into pieces. Only text that may still become a
    stop string is held back.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """Take the next piece, and return the text that is certain not to belong to a stop string.

        Stop strings that become complete in a piece that may not end the text are text like any other. Once `matched`
        is set the text has ended, and nothing more comes out.
        """
        if self.matched is not None:
            return ""
        if self._state == 0 and not self._stops.can_begin(text):
            return text
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            self._state = self._stops.step(self._state, character)
            if may_end and (matched := self._stops.found[self._state]) is not None:
                self.matched, self._held = matched, ""
                return pending[: end - len(matched)]
        certain = len(pending) - self._stops.open[self._state]
        self._held = pending[certain:]
        return pending[:certain]

    def finish(self) -> str:
        """Return the text that was held back for a stop string that never came."""
        held, self._held, self._state = self._held, "", 0
        return held
