"""Random patterns and texts, for the differential tests of `pattern_grammar`."""

from random import Random

# Real words of twelve scripts, and what the engines are known to disagree about: line ends, joiners, letters with a
# second or third case, ligatures, superscripts, marks.
WORDS = (
    "The", "don't", "naïve", "straße", "STRASSE", "ﬁst", "ﬀ", "ﬆ", "ſ", "K", "ẞ", "İ", "ı", "Ⅷ", "ⅷ", "Ⓐ",
    "привет", "мир", "Ελληνικά", "ς", "ͅ", "العربية", "עברית", "हिन्दी", "বাংলা", "ไทย", "中文", "漢字", "ひらがな",
    "カタカナ", "한국어", "ქართული", "🙂", "👩‍👩‍👧", "\u200c", "\u200d", "\ufeff", "e\u0301", "²³", "½", "٣", "123",
    "1", "45678", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u0085", "\u00a0", "\u2028", "\u3000", "\x0b", "\x1c",
    "a", "aa", "aab", "ab", "b", "ba", "B", "s", "ss", "S", "st", "f", "x", "z", "'s", "'LL", "’s", "_", "-", "--", "[",
    "]", "{", "}", "{2}", "(", ")", "&&", "~~", "^", "$", ".", "*", "+", "?", "|", "\\", "/", "#", "<", ">", "@",
)  # fmt: skip
_CHARACTERS = (*"abstfikAS x1'_éßя中-]}&", "\n")
_ESCAPES = (
    r"\n", r"\r", r"\t", r"\f", r"\v", r"\a", r"\e", r"\x41", r"\x{df}", r"\u0431", r"\x{1F642}", r"\-", r"\.", r"\/",
    r"\'", r"\<", r"\{", r"\[", r"\]", r"\|", r"\^", r"\$", r"\*", r"\ ", r"\é",
)  # fmt: skip
_SETS = (
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\h", r"\H", r"\p{L}", r"\p{N}", r"\p{Lu}", r"\p{Ll}", r"\p{M}",
    r"\p{P}", r"\P{L}", r"\p{^N}", r"\P{^L}", r"\p{Han}", r"\p{Latin}", r"\p{Hiragana}", r"\p{Cyrillic}",
    r"\p{Alphabetic}", r"\p{Zs}", r"\p{Letter}", r"\p{Uppercase}",
)  # fmt: skip
_ANCHORS = ("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z")
_REPEATS = (
    "*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{2,}", "{,2}", "{0,1}", "{1,3}+", "{2}+",
    "{1,2}?", "{2,}?", "{3,}+",
)  # fmt: skip
# What is refused, or may be.
_STRANGE = (
    r"\R", r"\X", r"\K", r"\G", r"\N", r"\1", r"\pL", r"\p{XDigit}", r"\xE9", r"\0", "(?s)", "(?m)", "(?m:.)",
    "(?x: a )", "(?P<n>a)", "(?<n>a)", "(?#c)", "a{", "{", "{,}", "a{2}?", "a**", "a+*", "(?:a|)*", "(?:a*)+", "[]a]",
    "[a-c-e]", "[a-z--[b]]", "[[:alpha:]]", r"[\d-x]", "[b&&]", "(?<=a+)", "(?<!(b))", "(?i)", "(?-i)", "(?~a)",
    "[~~a]", "[a||b]", "(*FAIL)", "[]", "[^]",
)  # fmt: skip


def random_text(random: Random) -> str:
    """Up to fourteen words or characters, most of them joined at random."""
    return "".join(random.choices(WORDS, k=random.randrange(1, 15)))


class RandomPatterns:
    """Patterns of the grammar, to some depth, one in ten with something strange.

    Args:
        random: Where the choices come from.
    """

    def __init__(self, random: Random):
        self._random = random

    def pattern(self) -> str:
        """A pattern, mostly with flags or alternatives at the top."""
        flags = self._random.choice(["", "", "", "", "(?i)"])
        pattern = flags + self._alternatives(3)
        if self._random.random() < 0.1:
            place = self._random.randrange(len(pattern) + 1)
            pattern = pattern[:place] + self._random.choice(_STRANGE) + pattern[place:]
        return pattern

    def _alternatives(self, depth: int) -> str:
        return "|".join(self._branch(depth) for _ in range(self._random.choice([1, 1, 2, 3])))

    def _branch(self, depth: int) -> str:
        return "".join(self._repeated(depth) for _ in range(self._random.choice([0, 1, 1, 1, 2, 2, 3])))

    def _repeated(self, depth: int) -> str:
        atom = self._atom(depth)
        if atom in _ANCHORS or self._random.random() < 0.5:
            return atom
        return atom + self._random.choice(_REPEATS)

    def _atom(self, depth: int) -> str:
        choice = self._random.random()
        if depth and choice < 0.25:
            return self._group(depth - 1)
        if choice < 0.45:
            return self._class(depth)
        if choice < 0.6:
            return self._random.choice(_SETS)
        if choice < 0.68:
            return self._random.choice(_ESCAPES)
        if choice < 0.75:
            return self._random.choice(_ANCHORS)
        if choice < 0.8:
            return "."
        return self._random.choice(_CHARACTERS)

    def _group(self, depth: int) -> str:
        kind = self._random.choice(["(", "(?:", "(?:", "(?>", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!"])
        if kind.startswith("(?<"):
            atoms = [self._random.choice([*_CHARACTERS, *_SETS, "ab|c", "[a-c]", "aa"]) for _ in range(2)]
            return f"{kind}{''.join(atoms)})"
        return f"{kind}{self._alternatives(depth)})"

    def _class(self, depth: int) -> str:
        members = [self._member(depth) for _ in range(self._random.choice([1, 1, 2, 3, 4]))]
        if self._random.random() < 0.15:
            members.insert(self._random.randrange(len(members) + 1), "&&")
        return f"[{self._random.choice(['', '', '^'])}{''.join(members)}]"

    def _member(self, depth: int) -> str:
        choice = self._random.random()
        if depth and choice < 0.08:
            return self._class(depth - 1)
        if choice < 0.3:
            return self._random.choice(_SETS)
        if choice < 0.5:
            return self._random.choice(
                ["a-c", "a-z", "A-Z", "0-9", "r-t", "а-я", r"\x41-\x43", "!-/", r"\t-\r", "a-é", "一-龥"]
            )
        if choice < 0.6:
            return self._random.choice(_ESCAPES)
        return self._random.choice([*_CHARACTERS, "^", "$", ".", "|", "~", "#", "("])
