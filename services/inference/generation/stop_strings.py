"""Find stop strings in streamed text, without releasing the start of one."""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of Aho and Corasick (1975, doi 10.1145/360825.360855) over stop strings; shared by all choices.

    State 0 is the root; a state is the longest suffix of the text so far that is a prefix of a stop string. A character
    costs amortized constant time, however many stop strings there are and however long they are.

    Attributes:
        num_held: For each state, how many characters at the text's end may still become a stop string.
        matches: For each state, the longest stop string that ends in it.
        longest: The characters of the longest stop string; 0 without one.
        is_ascii: Whether no stop string has any other character.
        first_characters: Those that a stop string starts with.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.longest = max(map(len, stops), default=0)
        self.is_ascii = all(map(str.isascii, stops))
        self.num_held = [0]
        self.matches: list[str | None] = [None]
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]  # the state of the longest proper suffix
        for stop in stops:
            self._add(stop)
        self._link()
        self.first_characters = self._children[0].keys()

    def advance(self, state: int, character: str) -> int:
        """The state after one more character."""
        while True:
            child = self._children[state].get(character)
            if child is not None:
                return child
            if state == 0:
                return 0
            state = self._fallback[state]

    def _add(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, 1):
            child = self._children[state].get(character)
            if child is None:
                child = len(self.matches)
                self._children[state][character] = child
                self._children.append({})
                self.num_held.append(depth)
                self.matches.append(None)
                self._fallback.append(0)
            state = child
        self.matches[state] = stop

    def _link(self) -> None:
        """Set the fallbacks, breadth first: those of shorter states are complete before longer states use them."""
        states = deque(self._children[0].values())
        while states:
            state = states.popleft()
            self.matches[state] = self.matches[state] or self.matches[self._fallback[state]]
            if not self._children[state]:  # no stop string is longer, but one that starts later may still come
                self.num_held[state] = self.num_held[self._fallback[state]]
            for character, child in self._children[state].items():
                self._fallback[child] = self.advance(self._fallback[state], character)
                states.append(child)


class StopMatcher:
    """Passes text through until a stop string is complete.

    The stop string whose last character comes first ends the text; of several that end on the same character, the
    longest does. So the result does not depend on how the text is split. Only text that may still become a stop string
    is held back.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """Take the next text, and return what is certain not to belong to a stop string.

        With `may_end` false, stop strings that become complete in this text do not end it. Once `matched` is set the
        text has ended, and only empty strings are returned.
        """
        if self.matched is not None:
            return ""
        if self._state == 0 and self._stops.first_characters.isdisjoint(text):
            return text
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            self._state = self._stops.advance(self._state, character)
            if may_end and (matched := self._stops.matches[self._state]) is not None:
                self.matched, self._held = matched, ""
                return pending[: max(0, end - len(matched))]
        num_certain = max(0, len(pending) - self._stops.num_held[self._state])
        self._held = pending[num_certain:]
        return pending[:num_certain]

    @property
    def num_held(self) -> int:
        """How many characters at the text's end may still become a stop string, those that `skip` took included."""
        return self._stops.num_held[self._state]

    def skip(self, text: str) -> None:
        """Take text that was released before: a stop string may begin in it, but not end."""
        self.feed(text[-self._stops.longest :] if self._stops.longest else "", may_end=False)
        self._held = ""

    def finish(self) -> str:
        """Return the text that was held back for a stop string that did not become complete."""
        held, self._held, self._state = self._held, "", 0
        return held
