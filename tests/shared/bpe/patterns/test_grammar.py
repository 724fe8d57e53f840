"""Custom patterns against Hugging Face's tokenizers (Oniguruma) and tiktoken (fancy-regex): the same, or a refusal."""

from collections import Counter
from random import Random

import pytest
import regex
from tokenizers import Regex, pre_tokenizers

from shared.bpe import PATTERNS, TokenizerError
from shared.bpe.patterns.grammar import translate
from shared.bpe.patterns.named import read_expression, split
from tests.shared.bpe.patterns.random_patterns import RandomPatterns, random_text
from tests.shared.bpe.patterns.test_named import CL100K_PUBLISHED, pieces_of_tiktoken

pytestmark = pytest.mark.case("D27")

PROPERTIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co "
    "Letter Mark Number Punctuation Symbol Separator Alphabetic Uppercase Lowercase "
    "Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul "
    "Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Syriac Tamil "
    "Telugu Thaana Thai Tibetan"
)
SETS = (
    *(rf"\{letter}" for letter in "dDsShHwW"),
    *(rf"[\{letter}]" for letter in "sSwW"),
    *(rf"\p{{{name}}}" for name in PROPERTIES.split()),
    *(f"(?i:{letter})" for letter in "abcdefghijklmnopqrstuvwxyz'"),
    "(?i:[a-z])", "(?i:[^A-T])", r"(?i:[^\s\d'])", "[^a]", r"[^\s\p{L}\p{N}]", r"[\p{L}&&[^\p{Latin}]]", ".",
)  # fmt: skip


def pieces_of_tokenizers(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("[a-c&&[b]]+", "xbay"),
        (r"[\p{L}&&[^\p{Han}]]+|\p{Han}+|.", "the day 中文"),
        (r"\h+", "x ab"),
        (r"\s+$", "a  \n\nb "),
        (r"^a|b$", "a\na\nb\nb"),
        (r"\w+", "a\u200db"),
        (r"\w+", "x²½"),
        (r"[\w]+", "x²½"),
        (r"a{1,2}+", "aaaaab"),
        ("|aa", "aab"),
        (r"(?=a)|a", "baab"),
        ("a.b", "a\rb a\nb"),
        ("x|(?i)b|c", "XBC"),
        ("(?i:'s|'t)", "'S'ſ'T"),
        (r"[^\P{L}\p{L}]|.", "ab1"),
        ("[^-]|.", "ab\n\n-"),
        (CL100K_PUBLISHED, "12345 I'm  \n 1 "),
    ],
)
def test_what_engines_read_differently_is_read_as_tokenizers_does(pattern: str, text: str) -> None:
    assert split(read_expression(pattern), text) == pieces_of_tokenizers(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?m)a.b", "the group '(?m)'"),
        ("(?s)a.|.", "the group '(?s)'"),
        ("(?m)b.a|.", "the group '(?m)'"),
        ("(?x: a)", "the group '(?x:'"),
        ("(?P<n>a)", "the group '(?P<'"),
        ("(?<n>a)", "the group '(?<n'"),
        ("(?~a)", "the group '(?~a'"),
        ("a(?i)b|c", "the group '(?i)'"),
        ("[a-z--[b]]+", "'-' inside a class"),
        ("[a-c-e]", "'-' inside a class"),
        (r"[\w-z]", "a range from a set"),
        ("[z-a]", "the range 'z' to 'a', whose ends are reversed"),
        ("[[:alpha:]]", "'[:' in brackets"),
        ("[]a]", "']' in place of a character"),
        ("[b&&]", "']' in place of a character"),
        ("[a", "a '[' without a ']'"),
        ("(?i)straße", "'st' where case is ignored, which also matches one character"),
        ("(?i)ß", "'ß' where case is ignored"),
        ("(?i:[s]s)", "'ss' where case is ignored"),
        ("(?i:f{2})", "'ff' where case is ignored"),
        (r"(?i:[\S])", r"'\S' in brackets where case is ignored"),
        ("(?i:[a-é])", "the range 'a' to 'é' where case is ignored"),
        ("(?i:[a&&b])", "'&&' in brackets where case is ignored"),
        (r"[^a[bc]]", "'^' before a class with '&&' or '[' in it"),
        (r"[^a&&b]", "'^' before a class with '&&' or '[' in it"),
        (r"\B.{2,}", "a repeat of '.' after something that matches no character"),
        (r"(?:a|(?=b)(?:(?:.)+x|c))", "a repeat of '.' after something that matches no character"),
        (r"\pL", r"'\pL' (supported are properties"),
        (r"\p{XDigit}", r"'\p{XDigit' (supported are properties"),
        (r"(a)\1", r"'\1'"),
        (r"\R", r"'\R'"),
        (r"\K", r"'\K'"),
        (r"\xE9", r"'\x'"),
        (r"\x{D800}", r"'\x{D800}', which is not a character"),
        ("\\", "'\\'"),
        ("a{2}?", "'{2}?'"),
        ("a{2,}+", "'{2,}+'"),
        ("a{0,2}+", "'{0,2}+'"),
        ("a{3,1}", "the repeat '{3,1}', whose bounds are reversed"),
        ("a{", "'{' with nothing to repeat"),
        ("a{,}", "'{,}', which is not a repeat"),
        ("a+*", "'*' after a repeat"),
        ("*a", "'*' with nothing to repeat"),
        ("(?:a|)*", "the repeat '*' of something that may match the empty string"),
        (r"(?:\b)+", "the repeat '+' of something that may match the empty string"),
        ("(?<=a+)b", "'(?<=' with anything but characters"),
        ("(?<!(a))b", "'(?<!' with anything but characters"),
        ("(", "a '(' without a ')'"),
        (")", "a ')' without a '('"),
        ("(" * 51 + ")" * 51, "more than 50 levels of groups and classes"),
        ("[" * 51 + "a" + "]" * 51, "more than 50 levels of groups and classes"),
        ("(?:" * 40 + "a" + ")+" * 40, "repeats that expand to more than 65,536 characters"),
        ("((a{1000}){1000}){1000}", "repeats that expand to more than 65,536 characters"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_by_name(pattern: str, construct: str) -> None:
    with pytest.raises(TokenizerError) as error:
        read_expression(pattern)
    assert f"is not supported: {construct}" in str(error.value)


def test_a_pattern_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        read_expression("a\ud800")


def check_sets(characters: str) -> None:
    """The characters that tokenizers has in each set, from what is left of a text without them, against ours."""

    def theirs(expression: str) -> set[str]:
        rest = pre_tokenizers.Split(Regex(f"{expression}+"), "removed").pre_tokenize_str(characters)
        return set(characters) - set("".join(piece for piece, _ in rest))

    # Those it knows: it may have an earlier version of Unicode, in which U+0295 was a lower-case letter.
    known = theirs(r"\P{Cn}") - {"\u0295"}
    for expression in SETS:
        ours = set(regex.findall(translate(expression).expression, characters, regex.VERSION1))
        assert sorted((ours ^ theirs(expression)) & known) == [], expression


def test_sets_hold_the_characters_that_they_hold_to_tokenizers() -> None:
    check_sets("".join(map(chr, range(0x3100))))


@pytest.mark.slow
def test_sets_hold_the_characters_that_they_hold_to_tokenizers_in_the_planes_that_have_letters() -> None:
    check_sets("".join(chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000))


@pytest.mark.parametrize("name", PATTERNS)
def test_translated_named_patterns_cut_as_the_named_ones(name: str) -> None:
    translated = regex.compile(translate(PATTERNS[name]).expression, regex.VERSION1)
    random = Random(5)
    for _ in range(500):
        text = random_text(random)
        assert translated.findall(text) == split(PATTERNS[name], text), text


def check_against_tokenizers(patterns: int, seed: int) -> Counter[str]:
    random = Random(seed)
    source = RandomPatterns(random)
    seen: Counter[str] = Counter()
    for _ in range(patterns):
        pattern = source.pattern()
        try:
            expression = read_expression(pattern)
        except TokenizerError:
            seen["refused"] += 1
            continue
        # Whatever we accept, tokenizers must too.
        theirs = pre_tokenizers.Split(Regex(pattern), "isolated")
        seen["accepted"] += 1
        for _ in range(6):
            text = random_text(random)
            try:
                expected = [piece for piece, _ in theirs.pre_tokenize_str(text)]
                pieces = split(expression, text)
            except BaseException as error:
                # Either gives up when it has tried for too long.
                if not isinstance(error, TokenizerError) and type(error).__name__ != "PanicException":
                    raise
                continue
            assert pieces == expected, (pattern, text)
            seen["texts"] += 1
    return seen


@pytest.mark.extended
def test_random_patterns_cut_as_in_tokenizers() -> None:
    seen = check_against_tokenizers(4_000, seed=6)
    assert seen["accepted"] > 1_500


@pytest.mark.slow
def test_400000_random_patterns_cut_as_in_tokenizers() -> None:
    seen = check_against_tokenizers(400_000, seed=7)
    assert seen["accepted"] > 150_000


def check_against_tiktoken(patterns: int, seed: int) -> int:
    random = Random(seed)
    source = RandomPatterns(random)
    num_compared = 0
    for _ in range(patterns):
        # tiktoken drops what a pattern does not match.
        pattern = rf"{source.pattern()}|[\s\S]"
        try:
            expression, construct = read_expression(pattern), translate(pattern).not_in_tiktoken
        except TokenizerError:
            continue
        if construct is None:
            text = random_text(random)
            assert split(expression, text) == pieces_of_tiktoken(pattern, text), (pattern, text)
            num_compared += 1
    return num_compared


def test_random_patterns_cut_as_in_tiktoken() -> None:
    assert check_against_tiktoken(3_000, seed=8) > 300


@pytest.mark.slow
def test_100000_random_patterns_cut_as_in_tiktoken() -> None:
    assert check_against_tiktoken(100_000, seed=9) > 10_000
