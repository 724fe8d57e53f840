"""Unicode NFC that remembers where every character came from."""

import unicodedata


def nfc_with_origins(text: str) -> tuple[str, list[tuple[int, int]]]:
    """NFC of a text, and for each of its characters the (start, end) of the characters of the text it came from.

    The text is taken in clusters, the shortest parts that normalize alone as they do together.
    """
    normalized: list[str] = []
    origins: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and _joins(text[start:end], text[end]):
            end += 1
        cluster = unicodedata.normalize("NFC", text[start:end])
        normalized.append(cluster)
        origins += [(start, end)] * len(cluster)
        start = end
    return "".join(normalized), origins


def _joins(cluster: str, character: str) -> bool:
    if character.isascii():
        return False
    if unicodedata.combining(character):
        return True
    apart = unicodedata.normalize("NFC", cluster) + unicodedata.normalize("NFC", character)
    return unicodedata.normalize("NFC", cluster + character) != apart
