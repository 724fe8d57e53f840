"""The frozen classes against the `regex` package that they were made from."""

import regex

from shared.bpe.kernels import classes


def test_classes_are_those_of_regex() -> None:
    table = classes.character_classes()
    text = "".join(chr(point) if not 0xD800 <= point < 0xE000 else "\0" for point in range(0x110000))
    expected = bytearray(0x110000)
    properties = {
        classes.MARK: r"\p{M}",
        classes.UPPER: r"[\p{Lu}\p{Lt}]",
        classes.LOWER: r"\p{Ll}",
        classes.CASELESS: r"[\p{Lm}\p{Lo}]",
        classes.NUMBER: r"\p{N}",
        classes.SPACE: r"\s",
    }
    for number, expression in properties.items():
        for match in regex.finditer(f"{expression}+", text):
            expected[match.start() : match.end()] = bytes([number]) * len(match.group())
    assert table.tobytes() == bytes(expected)
