"""The memory of texts."""

import pytest

from shared.bpe import TokenizerError
from shared.bpe.encoding.text_memory import utf8_of


@pytest.mark.parametrize("text", ["", "a", "plain\0text " * 1000, "é", "日本", "a" * 5000 + "😀"])
def test_it_holds_the_utf8_of_a_text(text: str) -> None:
    assert utf8_of(text).tobytes() == text.encode()


def test_ascii_is_not_copied() -> None:
    text = "".join(["a", "bc"])
    assert utf8_of(text).ctypes.data == utf8_of(text).ctypes.data
    other = "".join(["é", "bc"])
    assert utf8_of(other).base is not utf8_of(other).base


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(TokenizerError, match="U\\+D800, at character 1"):
        utf8_of("a\ud800")
