r"""Parsing a custom pattern as Hugging Face's tokenizers does, and translating it for the `regex` package.

tokenizers runs patterns with Oniguruma, tiktoken with fancy-regex, and this package with `regex`; one expression may
mean three things. So a pattern is parsed by a grammar of what has one known meaning in Oniguruma: what `regex` would
read differently is translated, and what is not in the grammar is refused by name.

Source: Oniguruma 6.9, doc/RE; where it is silent, tokenizers itself, against which the tests hold every construct.
"""

import re
from typing import NamedTuple

from shared.bpe.patterns.characters import WORD_ALONE, CharacterReader

# Limit of the product of nested repeats, which `regex` expands when it compiles.
_MAX_SIZE = 1 << 16

_REPEAT = re.compile(r"[*+?]|\{([0-9]{0,6})(,?)([0-9]{0,6})\}")
_FLAG = re.compile(r"\(\?(-?)i([:)])")
_GROUPS = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_ANCHORS = {
    # Oniguruma sees lines, and none behind a newline at the very end.
    "^": r"(?:\A|(?<=\n)(?!\Z))",
    "$": r"(?=\n|\Z)",
    r"\A": r"\A",
    r"\z": r"\Z",
    r"\Z": r"(?=\n?\Z)",
    r"\b": f"(?:(?<=[{WORD_ALONE}])(?![{WORD_ALONE}])|(?<![{WORD_ALONE}])(?=[{WORD_ALONE}]))",
    r"\B": f"(?:(?<=[{WORD_ALONE}])(?=[{WORD_ALONE}])|(?<![{WORD_ALONE}])(?![{WORD_ALONE}]))",
}
_ANCHORS_OF_ALL = {r"\A", r"\z"}


class Translation(NamedTuple):
    """A pattern for the `regex` package.

    Attributes:
        expression: Has the same matches in version 1 of `regex` as the pattern has in Oniguruma; without captures.
        is_nullable: Whether it may match the empty string.
        not_in_tiktoken: The first construct that tiktoken reads differently or not at all; None if there is none.
    """

    expression: str
    is_nullable: bool
    not_in_tiktoken: str | None


def translate(pattern: str) -> Translation:
    """Parse a pattern as Oniguruma does.

    Raises:
        TokenizerError: It is not valid or not supported; names the construct and its position.
    """
    return _PatternReader(pattern).read()


class _Node(NamedTuple):
    """A part of a pattern.

    Attributes:
        expression: For `regex`.
        is_nullable: Whether it may match the empty string.
        is_plain: Whether it consists of characters, classes and alternatives of them only.
        is_empty: Whether it matches no character, as anchors and lookarounds do.
        runs_on: Whether it begins with a repeat of `.` without an upper bound.
        size: Number of characters and classes when all repeats are expanded.
    """

    expression: str
    is_nullable: bool = False
    is_plain: bool = True
    is_empty: bool = False
    runs_on: bool = False
    size: int = 1


class _PatternReader(CharacterReader):
    """A recursive descent parser."""

    def read(self) -> Translation:
        node = self._alternatives()
        if self._at < len(self._pattern):
            self._refuse("a ')' without a '('")
        if node.is_nullable:
            self._differs("a match of the empty string")
        return Translation(node.expression, node.is_nullable, self.not_in_tiktoken)

    def _alternatives(self) -> _Node:
        """Up to the end of a group, where a flag that was set in it ends too."""
        outside = self._ignores_case
        branches = [self._branch()]
        while self._take("|"):
            self._letter = ""
            branches.append(self._branch())
        self._ignores_case = outside
        return _Node(
            "|".join(branch.expression for branch in branches),
            is_nullable=any(branch.is_nullable for branch in branches),
            is_plain=all(branch.is_plain for branch in branches),
            is_empty=all(branch.is_empty for branch in branches),
            runs_on=any(branch.runs_on for branch in branches),
            size=sum(branch.size for branch in branches),
        )

    def _branch(self) -> _Node:
        while self._flag(")"):
            pass
        nodes: list[_Node] = []
        is_empty = True
        while self._peek() not in {"", "|", ")"}:
            node = self._repeated()
            if nodes and is_empty and node.runs_on:
                # Oniguruma looks for it at the beginning of lines only.
                self._refuse("a repeat of '.' after something that matches no character")
            is_empty &= node.is_empty
            nodes.append(node)
        return _Node(
            "".join(node.expression for node in nodes),
            is_nullable=all(node.is_nullable for node in nodes),
            is_plain=all(node.is_plain for node in nodes),
            is_empty=is_empty,
            runs_on=bool(nodes) and nodes[0].runs_on,
            size=sum(node.size for node in nodes),
        )

    def _repeated(self) -> _Node:
        atom = self._atom()
        found = _REPEAT.match(self._pattern, self._at)
        if found is None:
            return atom
        repeat = found[0]
        if atom.is_nullable:
            self._refuse(f"the repeat {repeat!r} of something that may match the empty string")
        low, high = self._bounds(found)
        self._at = found.end()
        text = atom.expression + (repeat if len(repeat) == 1 else f"{{{low},{'' if high is None else high}}}")
        size = atom.size if high == 1 else atom.size * max(2, low, high or 0)
        if self._take("?"):
            if low == high:
                self._refuse(f"{repeat + '?'!r}")
            text += "?"
        elif self._take("+"):
            if len(repeat) == 1:
                text += "+"
            else:
                # To Oniguruma a repeat of the repeat, to others one that gives nothing back.
                self._differs(f"{repeat}+")
                if low == 0 or high is None:
                    self._refuse(f"{repeat + '+'!r}")
                text, size = f"(?:{text})+", 2 * size
        if size > _MAX_SIZE:
            self._refuse(f"repeats that expand to more than {_MAX_SIZE:,} characters")
        if _REPEAT.match(self._pattern, self._at):
            self._refuse(f"{self._peek()!r} after a repeat")
        runs_on = atom.runs_on or (high is None and atom.expression.strip("(?:>)") == ".")
        return _Node(text, low == 0, is_plain=False, runs_on=runs_on, size=size)

    def _bounds(self, found: re.Match[str]) -> tuple[int, int | None]:
        """How often a repeat repeats, at least and at most."""
        if len(found[0]) == 1:
            return int(found[0] == "+"), 1 if found[0] == "?" else None
        least, comma, most = found.groups()
        if not least and not most:
            self._refuse(f"{found[0]!r}, which is not a repeat (escape the brace: \\{{)")
        if not least:
            self._differs(found[0])
        low = int(least or 0)
        high = low if not comma else int(most) if most else None
        if high is not None and high < low:
            self._refuse(f"the repeat {found[0]!r}, whose bounds are reversed")
        self._meet(self._letter)
        return low, high

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return _Node(self._brackets())
        if character == "\\":
            return self._escape()
        if character == ".":
            self._letter = ""
            return _Node(".")
        if character in _ANCHORS:
            return self._anchor(character)
        if character in "*+?{":
            self._refuse(f"{character!r} with nothing to repeat (escape it: \\{character})")
        return _Node(self._literal(character))

    def _escape(self) -> _Node:
        members = self._set_escape(in_brackets=False)
        if members is not None:
            self._letter = ""
            return _Node(members)
        if f"\\{self._peek()}" in _ANCHORS:
            return self._anchor(f"\\{self._next()}")
        return _Node(self._literal(self._character_escape()))

    def _anchor(self, anchor: str) -> _Node:
        if anchor not in _ANCHORS_OF_ALL:
            self._differs(anchor)
        return _Node(_ANCHORS[anchor], is_nullable=True, is_plain=False, is_empty=True)

    def _group(self) -> _Node:
        """A group, read from behind its `(`."""
        self._at -= 1
        outside = self._ignores_case
        kind = "(?:" if self._flag(":") else next((kind for kind in _GROUPS if self._take(kind)), "")
        if not kind and self._pattern.startswith("(?", self._at):
            self._refuse(f"the group {self._pattern[self._at : self._at + 4]!r}")
        # Nothing refers to what a group captured.
        captures = not kind and self._take("(")
        kind = kind or "(?:"
        self._enter()
        node = self._alternatives()
        if not self._take(")"):
            self._refuse("a '(' without a ')'")
        self._depth -= 1
        self._ignores_case = outside
        if kind in {"(?<=", "(?<!"} and not node.is_plain:
            self._refuse(f"{kind!r} with anything but characters, classes and alternatives of them in it")
        looks = kind not in {"(?:", "(?>"}
        return _Node(
            f"{kind}{node.expression})",
            is_nullable=node.is_nullable or looks,
            is_plain=node.is_plain and kind == "(?:" and not captures,
            is_empty=node.is_empty or looks,
            runs_on=node.runs_on and not looks,
            size=node.size,
        )

    def _flag(self, end: str) -> bool:
        """Set or clear the flag that is written here, if any, with what ends it."""
        found = _FLAG.match(self._pattern, self._at)
        if found is None or found[2] != end:
            return False
        self._at = found.end()
        self._ignores_case = not found[1]
        return True
