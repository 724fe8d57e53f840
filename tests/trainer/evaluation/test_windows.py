"""Which tokens are scored, with which before them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.evaluation.windows import Window, WindowCutter, batches, consecutive_windows, document_windows


def cut(count: int, length: int, stride: int, *, parts: int = 1, fill_last: bool = False) -> list[Window]:
    cutter = WindowCutter(length, stride, fill_last=fill_last)
    windows = [window for ids in np.array_split(np.arange(count), parts) for window in cutter.feed(ids)]
    return [*windows, *cutter.finish()]


def as_lists(windows: list[Window]) -> list[tuple[list[int], list[int]]]:
    """Inputs and scored targets."""
    return [(tokens[:-1].tolist(), tokens[len(tokens) - scored :].tolist()) for tokens, scored, *_ in windows]


def transformers_loop(count: int, max_length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """The loop of transformers' page on perplexity, which shifts the labels within the model."""
    windows = []
    previous = 0
    for begin in range(0, count, stride):
        end = min(begin + max_length, count)
        ids = list(range(begin, end))
        windows.append((ids[:-1], ids[max(1, len(ids) - (end - previous)) :]))
        previous = end
        if end == count:
            break
    return windows


@pytest.mark.parametrize("parts", [1, 3, 40])
@pytest.mark.parametrize("stride", [1, 3, 7, 9])
@pytest.mark.parametrize("count", [2, 9, 10, 11, 23, 37])
def test_windows_are_those_of_transformers_loop(count: int, stride: int, parts: int) -> None:
    assert as_lists(cut(count, 9, stride, parts=parts)) == transformers_loop(count, 10, stride)


def test_the_last_window_reaches_back_as_in_lm_evaluation_harness() -> None:
    """The expectation is that of the harness's test_get_rolling_token_windows_v1 (max_seq_len 10, context_len 1).

    There the id before the first token is -100, which is 0 here; token n of the harness is n + 1 here.
    """
    expected = [
        (list(range(10)), list(range(1, 11))),
        (list(range(10, 20)), list(range(11, 21))),
        (list(range(20, 30)), list(range(21, 31))),
        (list(range(24, 34)), list(range(31, 35))),
    ]
    assert as_lists(cut(35, 10, 10, fill_last=True)) == expected


@pytest.mark.parametrize("fill_last", [False, True])
@pytest.mark.parametrize("stride", [1, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 8, 9, 10, 100])
def test_each_target_is_scored_once_with_enough_before_it(count: int, stride: int, fill_last: bool) -> None:
    windows = as_lists(cut(count, 8, stride, parts=2, fill_last=fill_last))
    assert [target for _, targets in windows for target in targets] == list(range(1, count))
    assert all(len(inputs) <= 8 for inputs, _ in windows)
    for inputs, targets in windows[1:]:
        assert targets[0] - inputs[0] >= 8 - stride + 1
    if fill_last and count > 9:
        assert {len(inputs) for inputs, _ in windows} == {8}


def test_batches_hold_every_window_once_and_sort_by_length() -> None:
    windows = [Window(np.arange(length), 1) for length in (3, 9, 2, 9, 5, 2)]
    lengths = [[len(window.tokens) for window in batch] for batch in batches(windows, batch_size=2, batch_tokens=0)]
    assert lengths == [[9, 9], [5, 3], [2, 2]]
    lengths = [[len(window.tokens) for window in batch] for batch in batches(windows, batch_size=None, batch_tokens=8)]
    assert lengths == [[9], [9], [5, 3], [2, 2]]


@given(count=st.integers(0, 80), length=st.integers(1, 9), parts=st.integers(1, 5))
def test_consecutive_windows_have_every_token_but_the_first_as_target_once(count: int, length: int, parts: int) -> None:
    """B77, B78: nothing is padded, dropped or repeated."""
    windows = [*consecutive_windows(np.array_split(np.arange(count), parts), length)]
    targets = [target for window in windows for target in window.tokens[1:].tolist()]
    assert targets == list(range(1, count))
    assert all(window.scored == len(window.tokens) - 1 <= length for window in windows)
    begun = [*consecutive_windows([np.arange(count)], length, begin_id=99)]
    assert [target for window in begun for target in window.tokens[1:].tolist()] == list(range(count))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 0, 3, 0, 4], [[0, 1, 2, 0], [0, 3, 0]]),  # the last document may be cut short
        ([1, 2], [[0, 1, 2]]),
        ([0, 1, 2, 3, 4, 0], [[0, 0], [0, 1, 2, 3]]),  # no more than the context
        ([], []),
    ],
)
def test_document_windows_begin_at_documents(ids: list[int], expected: list[list[int]]) -> None:
    windows = [*document_windows(np.array(ids, np.uint16), 0, 3)]
    assert [window.tokens.tolist() for window in windows] == expected
    assert all(window.scored == len(window.tokens) - 1 for window in windows)
