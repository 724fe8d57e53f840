"""Documents with the statistics of natural text, for tests that must run without the reference data."""

from collections.abc import Callable

import numpy as np

SEPARATOR = "<|endoftext|>"
_NUM_WORDS = 50_000
_SHARES = {"latin": 0.8, "cyrillic": 0.15, "chinese": 0.05}  # of the documents
_ENDS = (". ", "? ", "!\n", ".\n\n")


def made_documents(size: int, seed: int = 0) -> list[str]:
    """Documents of `size` characters or a little more: words by Zipf's law, and one document in 20 a second time."""
    draw = np.random.default_rng(seed)
    documents: list[str] = []
    while size > 0:
        if documents and draw.random() < 0.05:
            documents.append(documents[int(draw.random() * len(documents))])
        else:
            language = draw.choice([*_SHARES], p=[*_SHARES.values()])
            documents.append(_document(draw, _SPELLERS[language], "" if language == "chinese" else " "))
        size -= len(documents[-1])
    return documents


def _document(draw: np.random.Generator, spell: Callable[[int], str], space: str) -> str:
    """Sentences, of 3 to 3,000 words together, with a number and a comma here and there."""
    length = 3 + int(min(2997, draw.lognormal(5.3, 1.0)))
    text: list[str] = []
    sentence: list[str] = []
    for rank, chance in zip(np.searchsorted(_ZIPF, draw.random(length)), draw.random(length), strict=True):
        sentence.append(str(rank) if chance < 0.01 else spell(int(rank)) + ("," if chance > 0.96 else ""))
        if 0.01 < chance < 0.07:
            text.append(space.join(sentence).capitalize() + _ENDS[len(sentence) % len(_ENDS)])
            sentence = []
    return "".join(text) + space.join(sentence) + "…\n"


def _zipf() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The cumulative distribution of ranks, by Mandelbrot's form of the law."""
    cumulative = np.cumsum(1 / (np.arange(_NUM_WORDS) + 2.7))
    return cumulative / cumulative[-1]


def _syllables(consonants: str, vowels: str) -> Callable[[int], str]:
    """Words that are longer the rarer they are."""
    syllables = [consonant + vowel for consonant in consonants for vowel in vowels]

    def spell(rank: int) -> str:
        rest, place = divmod(rank, len(syllables))
        return (spell(rest - 1) if rest else "") + syllables[place]

    return spell


_ZIPF = _zipf()
_SPELLERS: dict[str, Callable[[int], str]] = {
    "latin": _syllables("tnshrdlcmfwgpbvk", "eaoiuéï"),
    "cyrillic": _syllables("тнсрвлкмдпбзгж", "оеаия"),
    "chinese": lambda rank: chr(0x4E00 + rank % 3000),
}
