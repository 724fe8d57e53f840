import pytest

from shared.system.errors import describe, escape_unprintable


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("a sentence for people"), "a sentence for people"),
        (FileNotFoundError(2, "No such file", "model"), "[Errno 2] No such file: 'model'"),
        (ValueError(), "ValueError"),
        (RuntimeError("raised by a library"), "RuntimeError: raised by a library"),
        (
            RuntimeError("can't start new thread"),
            "no thread can be started: the memory, or the number of processes allowed, is too small",
        ),
        (KeyError("a"), "KeyError: 'a'"),
        (MemoryError(), "not enough memory"),
        (MemoryError("of 5 GB"), "not enough memory: of 5 GB"),
    ],
)
def test_an_error_as_a_sentence(error: Exception, words: str) -> None:
    assert describe(error) == words


@pytest.mark.case("D54")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 中文 \U0001f600", "naïve 中文 \U0001f600"),
        ("\x1b[2J\x07\x00\x7f\x9b", "\\x1b[2J\\x07\\x00\\x7f\\x9b"),
        ("\u202egpj.exe\u2028\udcff", "\\u202egpj.exe\\u2028\\udcff"),
        ("a\r\nb\n  c\n", "a\\r\n  b\n  c\n"),
    ],
)
def test_what_a_terminal_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown
