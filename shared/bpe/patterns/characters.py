r"""Parsing the characters and character classes of a pattern: the lower half of `grammar`."""

import re
import unicodedata
from typing import NoReturn

from shared.bpe.errors import TokenizerError

# Nesting of groups and classes.
_MAX_DEPTH = 50
_SHOWN = 200
_SHOWN_NAME = 30

_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_CODE_POINT = re.compile(r"x([0-7][0-9A-Fa-f])|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})")
# Oniguruma's, which has neither U+200C nor U+200D as `regex` has, but outside of brackets six more.
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
_SETS = {"d": r"\p{Nd}", "s": r"\s", "h": "0-9A-Fa-f", "w": _WORD}
WORD_ALONE = _WORD + r"\u00b2\u00b3\u00b9\u00bc-\u00be"

_PROPERTY = re.compile(
    r"\{(\^?)(?:"
    r"(L[ultmo]?|M[nce]?|N[dlo]?|P[cdsefio]?|S[mcko]?|Z[slp]?|C[cfo]|Letter|Mark|Number|Punctuation|Symbol|Separator"
    r"|Alphabetic|Uppercase|Lowercase)"
    r"|(Arabic|Armenian|Bengali|Bopomofo|Common|Cyrillic|Devanagari|Ethiopic|Georgian|Greek|Gujarati|Gurmukhi|Han|Hangul"
    r"|Hebrew|Hiragana|Inherited|Kannada|Katakana|Khmer|Lao|Latin|Malayalam|Mongolian|Myanmar|Oriya|Sinhala|Syriac|Tamil"
    r"|Telugu|Thaana|Thai|Tibetan))\}"
)
# Where case is ignored, these are one letter too (U+00DF, U+FB00 to U+FB06) to Oniguruma.
_LIGATURES = {"ss", "st", "ff", "fi", "fl"}
# Members of classes that are no characters.
_CLASS, _SET = "[]", "\\p"
_OTHER_CASES = {"s": "\u017f", "k": "\u212a"}


class CharacterReader:
    """A position in a pattern, and the parsers of characters from there on.

    Attributes:
        not_in_tiktoken: The first construct that tiktoken reads differently or not at all; None if there is none.
    """

    def __init__(self, pattern: str):
        self.not_in_tiktoken: str | None = None
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._ignores_case = False
        # The letter just read, where case is ignored: what could be one character with the next.
        self._letter = ""

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1 : self._at]

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _refuse(self, what: str) -> NoReturn:
        pattern = self._pattern if len(self._pattern) <= _SHOWN else f"{self._pattern[:_SHOWN]}..."
        raise TokenizerError(
            f"the regular expression {pattern!r} is not supported: {what} near character {max(1, self._at)}; a pattern "
            "may use only what Hugging Face's tokenizers and Python's regex read alike"
        )

    def _differs(self, what: str) -> None:
        self.not_in_tiktoken = self.not_in_tiktoken or what

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} levels of groups and classes")

    def _literal(self, character: str) -> str:
        """A character outside of brackets."""
        cases = self._cases(character)
        self._meet(character.lower() if self._ignores_case else "")
        return cases if len(cases) == 1 or cases[0] == "\\" else f"[{cases}]"

    def _meet(self, letter: str) -> None:
        """Refuse two letters in a row that Oniguruma also finds as one character."""
        if self._letter + letter in _LIGATURES:
            self._refuse(f"{self._letter + letter!r} where case is ignored, which also matches one character")
        self._letter = letter

    def _cases(self, character: str) -> str:
        """A character as a member of a class, in all its cases where case is ignored."""
        if "\ud800" <= character <= "\udfff":
            self._refuse("a lone surrogate")
        if self._ignores_case and not character.isascii():
            cases = {character, character.lower(), character.upper(), character.casefold()}
            if len(cases) > 1 or unicodedata.category(character)[0] in "LM":
                self._refuse(f"{character!r} where case is ignored")
        if self._ignores_case and character.isalpha():
            lower = character.lower()
            return lower + lower.upper() + _OTHER_CASES.get(lower, "")
        return character if character.isascii() and character.isalnum() else f"\\U{ord(character):08x}"

    def _character_escape(self) -> str:
        r"""The character that an escape stands for, read from behind the `\`."""
        found = _CODE_POINT.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
            code = int(found[found.lastindex or 0], 16)
            if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                self._refuse(f"'\\{found[0]}', which is not a character")
            return chr(code)
        character = self._next()
        if character in {"e", "<", ">"}:
            self._differs(f"\\{character}")
        if not character or (character.isascii() and character.isalnum() and character not in _CONTROLS):
            self._refuse(f"'\\{character}'")
        return _CONTROLS.get(character, character)

    def _set_escape(self, *, in_brackets: bool) -> str | None:
        r"""What an escape for a set is as a member of a class, read from behind the `\`; None if it is another one."""
        letter = self._peek()
        kind = letter.lower()
        if kind not in {"d", "s", "h", "w", "p"}:
            return None
        if in_brackets and self._ignores_case and letter not in {"d", "s", "h"}:
            self._refuse(f"'\\{letter}' in brackets where case is ignored")
        self._at += 1
        if kind in {"h", "w"} or (kind == "p" and self._ignores_case):
            self._differs(f"\\{letter}")
        negated = letter.isupper()
        if kind == "p":
            inverted, members = self._property()
            negated ^= inverted
        else:
            members = _SETS[kind] if in_brackets or kind != "w" else WORD_ALONE
        return _complement(members) if negated else f"[{members}]"

    def _property(self) -> tuple[bool, str]:
        found = _PROPERTY.match(self._pattern, self._at)
        if found is None:
            name = self._pattern[self._at - 1 :].partition("}")[0][:_SHOWN_NAME]
            self._refuse(f"'\\{name}' (supported are properties such as \\p{{L}}, \\p{{Lu}} and \\p{{Han}})")
        self._at = found.end()
        if found[1]:
            self._differs(r"\p{^")
        return bool(found[1]), rf"\p{{{found[2] or f'Script={found[3]}'}}}"

    def _brackets(self) -> str:
        """A class, read from behind its `[`."""
        self._enter()
        negated = self._take("^")
        first = self._at
        members: set[str] = set()
        operands = [""]
        while self._at == first or not self._take("]"):
            if self._at > first and self._take("&&"):
                self._only_with_case("'&&'")
                operands.append("")
                first = self._at
            operands[-1] += self._item(members, is_first=self._at == first)
        self._depth -= 1
        if negated and (len(operands) > 1 or _CLASS in members):
            # Oniguruma is wrong about all characters but none.
            self._refuse("'^' before a class with '&&' or '[' in it")
        # A class of one character is that character to Oniguruma.
        is_letter = self._ignores_case and not negated and len(members) == 1
        self._meet(members.pop().lower() if is_letter else "")
        joined = operands[0] if len(operands) == 1 else "&&".join(f"[{operand}]" for operand in operands)
        return _complement(f"[{joined}]") if negated else f"[{joined}]"

    def _item(self, members: set[str], *, is_first: bool) -> str:
        """The next member of a class; what it consists of is put into `members`."""
        if self._take("["):
            self._only_with_case("'['")
            if self._peek() == ":":
                self._refuse("'[:' in brackets")
            members.add(_CLASS)
            return self._brackets()
        if self._take("\\"):
            text = self._set_escape(in_brackets=True)
            if text is not None:
                members.add(_SET)
                if self._peek() == "-" and not self._pattern.startswith("-]", self._at):
                    self._refuse("a range from a set")
                return text
            low = self._character_escape()
        else:
            low = self._plain_member(is_first=is_first)
        members.add(low)
        if self._peek() != "-" or self._pattern.startswith("-]", self._at):
            return self._cases(low)
        self._at += 1
        high = self._character_escape() if self._take("\\") else self._plain_member(is_first=False)
        members.add(high)
        if high < low:
            self._refuse(f"the range {low!r} to {high!r}, whose ends are reversed")
        if not self._ignores_case:
            return f"{self._cases(low)}-{self._cases(high)}"
        if not high.isascii():
            self._refuse(f"the range {low!r} to {high!r} where case is ignored")
        return "".join(self._cases(chr(code)) for code in range(ord(low), ord(high) + 1))

    def _plain_member(self, *, is_first: bool) -> str:
        """A character of a class that is not escaped."""
        character = self._next()
        if not character:
            self._refuse("a '[' without a ']'")
        if character in "[]" or (character == "&" and self._peek() == "&"):
            self._refuse(f"{character!r} in place of a character (escape it: \\{character})")
        if character == "-" and (self._peek() == "-" or (self._peek() != "]" and not is_first)):
            self._refuse("'-' inside a class (escape it: \\-)")
        if character == "~" == self._peek():
            self._differs("~~")
        return character

    def _only_with_case(self, what: str) -> None:
        if self._ignores_case:
            self._refuse(f"{what} in brackets where case is ignored")


def _complement(members: str) -> str:
    """All characters except these; `regex` is wrong about `[^...]` where several meet in a class or in alternatives."""
    return rf"[\x00-\U0010ffff--[{members}]]"
