"""The memory of texts."""

import numpy as np
import pytest

from shared.bpe.encoding.text_memory import locate, utf8_at
from shared.bpe.errors import SurrogateError

TEXTS = ["", "a", "plain\0text " * 1000, "é", "日本", "a" * 5000 + "😀", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_the_utf8_of_a_text(text: str) -> None:
    located = locate([text])
    assert utf8_at(int(located.addresses[0]), int(located.ends[0])).tobytes() == text.encode()


@pytest.mark.parametrize("text", ["abc", "éabc"])
def test_it_is_made_once(text: str) -> None:
    text = "".join([text, "d"])
    assert locate([text]).addresses == locate([text]).addresses


@pytest.mark.parametrize("room", [1 << 20, 10])
def test_texts_are_joined_in_the_buffer_or_in_more_memory(room: int) -> None:
    buffer, slack = np.full(room, 7, np.uint8), 64
    located = locate(TEXTS)
    whole = "".join(TEXTS).encode()
    joined = located.joined(buffer, slack)
    assert joined[: len(whole)].tobytes() == whole
    assert len(joined) >= len(whole) + slack
    assert located.ends.tolist() == np.cumsum([len(text.encode()) for text in TEXTS]).tolist()
    assert (joined is buffer) == (room > len(whole))


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(SurrogateError, match="U\\+D800, at character 1") as caught:
        locate(["b", "é", "a\ud800", "c\ud801"], 7)
    assert caught.value.index == 9
