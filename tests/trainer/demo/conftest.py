"""A checker of stories that does not use the grammar: it finds errors that an attentive reader would notice."""

import re
from collections.abc import Callable, Iterator

import pytest

SHE = (
    "Mia", "Anna", "Amara", "Yuki", "Priya", "Zara", "Rosa", "Mei", "Leila", "Ines", "Freya", "Nia",
    "mother", "grandmother", "aunt", "girl",
)  # fmt: skip
HE = (
    "Tom", "Ben", "Omar", "Kofi", "Ravi", "Leo", "Hugo", "Jin", "Mateo", "Sami", "Emil", "Kenji",
    "father", "grandfather", "uncle", "boy",
)  # fmt: skip
GENDER = dict.fromkeys(SHE, "she") | dict.fromkeys(HE, "he")
PRONOUN = dict.fromkeys(("she", "her", "herself"), "she") | dict.fromkeys(("he", "him", "his", "himself"), "he")
COLORS = "red|blue|green|yellow|orange|purple|silver|white"
HELPERS = "owl|turtle|beaver|goose|frog|crow|mole|heron"
KIN = "mother|father|grandmother|grandfather|aunt|uncle"
NOT_NAMES = {"I", "Saturday"}

SENTENCE_START = r"(?:^|[.!?]\"? |\"|\n)"
COLORED = rf"(?:{COLORS}) [a-z]+"
WISHES = (
    rf"(?:wanted|dreamed of|wished for|to win|to buy|lost|had) (?:a|an|the|my) ({COLORED})",
    r"wished that s?he could (\w+)",
    r"wanted to (swim|whistle|skate|juggle|read|have a picnic|look at the stars|put up a tent|sail paper boats)",
)


@pytest.fixture
def find_faults() -> Callable[[str], list[str]]:
    """A function from a story to its faults; an empty list for a story without any."""
    return lambda story: [*_typography(story), *_names(story), *_pronouns(story), *_things(story), *_ending(story)]


def _typography(story: str) -> Iterator[str]:
    if mark := re.search(r"[{}()|<>]|  | [.,!?]|[.,!?][a-zA-Z]|[.,]{2}|\n{3}", story):
        yield f"typography: {story[max(mark.start() - 20, 0) : mark.end() + 20]!r}"
    if any(paragraph.count('"') % 2 for paragraph in story.split("\n\n")):
        yield "a quotation is not closed"
    for article, word in re.findall(r"\b(an?) (\w+)", story, re.IGNORECASE):
        if (article.lower() == "an") != (word[0] in "aeiou"):
            yield f"article: {article} {word}"
    if start := re.search(r"(?:^|\n|\.\"? |(?:[!?] ))\"?[a-z][^ ]*", story):
        yield f"a sentence starts in lower case: {start[0]!r}"
    if doubled := re.search(r"\b(\w+) \1\b", story):
        yield f"doubled word: {doubled[0]!r}"


def _names(story: str) -> Iterator[str]:
    introduced = {match[1]: match.start() for match in reversed(list(re.finditer(r"named (\w+)", story)))}
    for match in re.finditer(r"\b[A-Z]\w*", story):
        name = match[0]
        starts_sentence = re.search(SENTENCE_START + r"$", story[: match.start()])
        if name in NOT_NAMES or (starts_sentence and name not in GENDER):
            continue
        if name not in introduced or match.start() < introduced[name]:
            yield f"{name} was not introduced"
    for kind, name in re.findall(r"(girl|boy) named (\w+)", story):
        if GENDER.get(name) != GENDER[kind]:
            yield f"a {kind} named {name}"
    for mention in re.finditer(rf"\bthe ({HELPERS})\b", story, re.IGNORECASE):
        if not re.search(rf"\ban? \w+ {mention[1]}\b", story[: mention.start()], re.IGNORECASE):
            yield f"the {mention[1]} was not introduced"
    if len(kin := set(re.findall(rf"\b({KIN})\b", story))) > 1:
        yield f"the grown-up changes: {sorted(kin)}"


def _pronouns(story: str) -> Iterator[str]:
    narration = re.sub(r'"[^"]*"', '""', story)
    present: set[str] = set()
    hero = None
    for word in re.findall(r"\w+", narration):
        if word in GENDER:
            present.add(GENDER[word])
        if hero is None and word[0].isupper() and word in GENDER:
            hero = GENDER[word]
        if (gender := PRONOUN.get(word.lower())) and gender not in present:
            yield f"{word} has no one to refer to"
    first = next((PRONOUN[word] for word in re.findall(r"\w+", narration.lower()) if word in PRONOUN), hero)
    if first != hero:
        yield f"the hero is {hero}, then {first}"
    kind = re.search(r"(\w+) named", story)
    for again in re.findall(r"[Tt]he little (\w+) was", story):
        if kind and again != kind[1]:
            yield f"the {kind[1]} turns into a {again}"


def _things(story: str) -> Iterator[str]:
    color_of: dict[str, str] = {}
    for color, noun in re.findall(rf"\b({COLORS}) ([a-z]+)", story):
        if color_of.setdefault(noun, color) != color:
            yield f"the {color_of[noun]} {noun} turns {color}"
    for match in re.finditer(rf"\b(?:the|my|this) ({COLORED})", story, re.IGNORECASE):
        if not re.search(rf"\b(?:an?|the) {match[1]}", story[: match.start()]):
            yield f"the {match[1]} comes out of nowhere"


def _ending(story: str) -> Iterator[str]:
    if not 80 <= (words := len(story.split())) <= 200:
        yield f"{words} words"
    if not re.search(r'[.!?]"?$', story):
        yield f"ends in {story[-20:]!r}"
    last = story.rsplit("\n\n", maxsplit=1)[-1]
    for wish in WISHES:
        for wanted in re.findall(wish, story):
            if wanted.split()[-1] not in last:
                yield f"nothing comes of {wanted!r}"
