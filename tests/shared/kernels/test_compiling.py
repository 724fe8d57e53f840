"""How Python calls kernels."""

import numpy as np
import pytest

from shared.bpe.kernels.boundaries import find_special
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.kernels.word_table import hash_bytes

TEXT = np.frombuffer(b"ab\xff, and more than eight bytes", np.uint8)


def test_results_are_numbers_of_their_type() -> None:
    assert first_invalid(TEXT, 0, 2) == -1
    assert 1 << 63 <= max(hash_bytes(TEXT, begin, 9) for begin in range(10)) < 1 << 64
    assert find_special(TEXT, 0, 20, np.frombuffer(b"and", np.uint8), np.array([0, 3])) == (5, 3)


def test_a_prepared_call_runs_again_with_what_has_changed() -> None:
    text = TEXT.copy()
    call = first_invalid.prepare(text, 0, 3)
    assert call.run() == call.run() == 2
    text[2] = ord("c")
    assert call.run() == -1
    call.words[3] = 4
    text[3] = 0x80
    assert call.run() == 3


@pytest.mark.parametrize(
    "wrong", [b"ab", [1, 2], TEXT.astype(np.int64), TEXT[::2], None], ids=["bytes", "list", "dtype", "strides", "none"]
)
def test_what_is_no_such_array_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="first_invalid takes a contiguous array of uint8"):
        first_invalid(wrong, 0, 2)


def test_an_array_to_be_written_must_not_be_read_only() -> None:
    offsets = np.array([0, 3])
    offsets.setflags(write=False)
    with pytest.raises(TypeError, match="takes a contiguous array of int64"):
        find_special(TEXT, 0, 20, np.frombuffer(b"and", np.uint8), offsets)


def test_too_few_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        first_invalid(TEXT, 0)
