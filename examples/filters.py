"""Filters for `python -m trainer clean --filter examples.filters:NAME`: copy and change them.

The quality rules and their limits are those of Gopher (Rae et al. 2021, arXiv:2112.11446, table A1), for English prose.
"""

STOP_WORDS = frozenset(["the", "be", "to", "of", "and", "that", "have", "with"])


def gopher_quality(text: str) -> bool | str:
    """Whether a document looks like prose; else the first rule that it breaks."""
    words = text.split()
    count = max(1, len(words))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rules = {
        "fewer than 50 or more than 100,000 words": 50 <= len(words) <= 100_000,
        "mean word length not from 3 to 10": 3 <= sum(map(len, words)) / count <= 10,
        "more than one # for ten words": text.count("#") <= 0.1 * count,
        "more than one ellipsis for ten words": text.count("...") + text.count("…") <= 0.1 * count,
        "over 90% of lines begin with a bullet": _share(lines, begin=("•", "-", "*")) <= 0.9,
        "over 30% of lines end with an ellipsis": _share(lines, end=("...", "…")) <= 0.3,
        "fewer than 80% of words have a letter": sum(word.lower() != word.upper() for word in words) >= 0.8 * count,
        "fewer than two common English words": len(STOP_WORDS.intersection(text.lower().split())) >= 2,
    }
    return next((rule for rule, holds in rules.items() if not holds), True)


def english(text: str) -> bool:
    """Whether a text is English, roughly: common English words are 5% of it or more.

    A model of languages decides better: `pip install py3langid` and `langid.classify(text)[0] == "en"`.
    """
    words = text.lower().split()
    return sum(word in STOP_WORDS for word in words) >= 0.05 * max(1, len(words))


def _share(lines: list[str], begin: tuple[str, ...] = ("",), end: tuple[str, ...] = ("",)) -> float:
    return sum(line.startswith(begin) and line.endswith(end) for line in lines) / max(1, len(lines))
