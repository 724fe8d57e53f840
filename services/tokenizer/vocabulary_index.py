"""Search in the bytes of all tokens of a vocabulary."""

import numpy as np
import numpy.typing as npt

from shared.bpe import Tokenizer

_PREFILTER = 8  # bytes of a search that are compared in all places at once; the rest only where these match


class VocabularyIndex:
    """The bytes of all tokens, end to end in order of id, and what order they are found in.

    Attributes:
        ids: The ids that have a token, ascending.
        fingerprint: That of the tokenizer, which takes as long as the rest.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.tokens
        ordered = sorted(tokens)
        self.fingerprint = tokenizer.fingerprint
        self.ids = np.array(ordered, np.int64)
        self._joined = b"".join([tokens[token_id] for token_id in ordered])
        self._bytes = np.frombuffer(self._joined, np.uint8)
        self._starts = np.zeros(len(ordered) + 1, np.int64)
        np.cumsum([len(tokens[token_id]) for token_id in ordered], out=self._starts[1:])
        self._by_length = np.argsort(np.diff(self._starts), kind="stable")

    def containing(self, needle: bytes) -> npt.NDArray[np.int64]:
        """The ids of tokens that contain these bytes, the shortest first, and of equal lengths the lowest id."""
        places = self._places(needle)
        owners = np.searchsorted(self._starts, places, side="right") - 1
        within = places + len(needle) <= self._starts[owners + 1]
        found = np.zeros(len(self.ids), np.bool_)
        found[owners[within]] = True
        return self.ids[self._by_length[found[self._by_length]]]

    def since(self, token_id: int) -> npt.NDArray[np.int64]:
        """The ids from this one on."""
        return self.ids[np.searchsorted(self.ids, token_id) :]

    def _places(self, needle: bytes) -> npt.NDArray[np.int64]:
        """Where the bytes begin, also across the edges of tokens."""
        places = np.flatnonzero(self._bytes[: max(0, len(self._bytes) - len(needle) + 1)] == needle[0])
        for offset, byte in enumerate(needle[1:_PREFILTER], start=1):
            places = places[self._bytes[places + offset] == byte]
        if len(needle) > _PREFILTER:
            same = [self._joined.startswith(needle, place) for place in places.tolist()]
            places = places[np.array(same, np.bool_)]
        return places
