"""MinHash signatures of documents, and the band keys under which near-duplicates meet.

A. Broder, "On the resemblance and containment of documents", 1997; the split into bands is that of Leskovec, Rajaraman
and Ullman, "Mining of Massive Datasets", chapter 3. The hashes are rensa's, whose first 16 bits are enough to compare.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shared.system.errors import how_to_install
from trainer.errors import UsageError

HASHES = 128
"""Hashes of a signature: the estimate of a similarity of 0.8 has a standard deviation of 0.035."""

_SEED = 42
_FOUND = 0.99  # of the pairs that are exactly as similar as the threshold share a band with this probability
_BLOCK_WORDS = 1 << 16
_LONG = 1 << 20  # characters
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

# Scripts without blanks between words, of which each character counts as one: Thai and Lao, Burmese, Khmer, kana, Han.
_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(f"[^\\W{_NO_BLANKS}]+|[{_NO_BLANKS}]")


@dataclass(frozen=True)
class Banding:
    """How a signature is cut into bands.

    Attributes:
        bands: How many; documents that agree in one of them are compared.
        rows: Hashes of each.
    """

    bands: int
    rows: int

    @classmethod
    def for_threshold(cls, threshold: float) -> "Banding":
        """The bands with the most rows, and so the fewest comparisons, that find 99 % of the pairs at a threshold."""
        rows = 1
        while 1 - (1 - threshold ** (rows + 1)) ** (HASHES // (rows + 1)) >= _FOUND:
            rows += 1
        return cls(HASHES // rows, rows)


def check_installed() -> None:
    """Raise a UsageError if the library of MinHash is not installed."""
    if find_spec("rensa") is None:
        raise UsageError(
            f"near-duplicates are found with rensa, which is not installed: {how_to_install('clean')}, or remove "
            "only equal documents with --near-duplicates 1"
        )


def sign(texts: Sequence[str], shingle: int, banding: Banding) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
    """Signatures of documents, and their keys: one for each band, of which 0 stands for a document without words.

    Args:
        texts: The documents.
        shingle: Words that are hashed together; a document of fewer is one shingle.
        banding: The bands.

    Returns:
        Of each document, the signature [HASHES] and the keys [bands].
    """
    from rensa import RMinHash

    shingles = [_shingles(text, shingle) for text in texts]
    ends = np.cumsum([0, *map(len, shingles)], dtype=np.uint64)
    flat = np.concatenate([*shingles, np.empty(0, np.uint64)])
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, ends, HASHES, _SEED)
    rows = np.array(matrix.to_rows(), dtype=np.uint64).reshape(len(texts), HASHES)
    bands = rows[:, : banding.bands * banding.rows].reshape(len(texts), banding.bands, banding.rows)
    keys = np.zeros((len(texts), banding.bands), np.uint64)
    for row in range(banding.rows):
        keys = _mixed(keys, bands[:, :, row])
    keys[np.diff(ends) == 0] = 0
    return rows.astype(np.uint16), keys


def _shingles(text: str, size: int) -> NDArray[np.uint64]:
    """A hash of every so many words in a row."""
    words = _word_hashes(text.lower())
    size = max(1, min(size, len(words)))
    count = len(words) - size + 1
    hashes = np.zeros(count, np.uint64)
    for place in range(size):
        hashes = _mixed(hashes, words[place : place + count])
    return hashes


def _word_hashes(text: str) -> NDArray[np.uint64]:
    from rensa import RMinHash

    found = (match.group() for match in _WORD.finditer(text))
    blocks = (
        [_WORD.findall(text)]  # twice as fast, but all words of a huge document would take much memory
        if len(text) < _LONG
        else iter(lambda: list(islice(found, _BLOCK_WORDS)), [])
    )
    hashes = [np.array(RMinHash.hash_token_sets([words])[0], dtype=np.uint64) for words in blocks]
    return np.concatenate([*hashes, np.empty(0, np.uint64)])


def _mixed(state: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (state ^ values) * _MULTIPLIER
    return mixed ^ (mixed >> np.uint64(29))
