import pytest

from shared.errors import describe


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("a sentence for people"), "a sentence for people"),
        (FileNotFoundError(2, "No such file", "model"), "[Errno 2] No such file: 'model'"),
        (ValueError(), "ValueError"),
        (RuntimeError("told by a library"), "RuntimeError: told by a library"),
        (KeyError("a"), "KeyError: 'a'"),
        (MemoryError(), "not enough memory"),
        (MemoryError("of 5 GB"), "not enough memory: of 5 GB"),
    ],
)
def test_an_error_as_a_sentence(error: Exception, words: str) -> None:
    assert describe(error) == words
