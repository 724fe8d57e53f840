"""The ids of many texts, apart from each other."""

import sys
import weakref

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.bpe.kernels.texts import split_ids
from shared.kernels.numpy_api import numpy_api


def split(ids: NDArray[np.uint32], ends: list[int]) -> list[NDArray[np.uint32]]:
    views: list[NDArray[np.uint32]] = split_ids.prepare(0, numpy_api(), ids, np.array(ends, np.int64)).builtin(ids)
    return views


@pytest.mark.parametrize("ends", [[], [0], [3], [0, 0, 2, 2, 7, 9, 9]])
def test_each_text_has_its_ids(ends: list[int]) -> None:
    ids = np.arange(9, dtype=np.uint32) * 1_000_003
    views = split(ids, ends)
    expected = [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [view.tolist() for view in views] == [each.tolist() for each in expected]
    for view, each in zip(views, expected, strict=True):
        assert type(view) is np.ndarray
        assert (view.dtype, view.shape, view.strides) == (each.dtype, each.shape, each.strides)
        assert str(view.flags) == str(each.flags)
        assert view.base is ids


def test_the_ids_of_a_view_stay_too() -> None:
    whole = np.arange(9, dtype=np.uint32)
    views = split(whole[:6], [2, 6])
    assert views[1].base is whole
    assert views[1].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("allowed", [0, 1, 2, 3, 4, 100, 2999])
def test_without_memory_it_raises_and_gives_everything_back(allowed: int) -> None:
    testing = pytest.importorskip("_testcapi")
    ids = np.arange(3000, dtype=np.uint32)
    call = split_ids.prepare(0, numpy_api(), ids, np.arange(1, 3001)).builtin
    held = sys.getrefcount(ids)
    testing.set_nomemory(allowed)
    try:
        views = call(ids)
    except MemoryError:
        views = None
    finally:
        testing.remove_mem_hooks()
    assert views is None or len(views) == 3000
    del views
    assert sys.getrefcount(ids) == held


def test_the_ids_stay_as_long_as_one_text_has_them() -> None:
    ids = np.arange(9, dtype=np.uint32)
    held, alive = sys.getrefcount(ids), weakref.ref(ids)
    views = split(ids, [2, 9])
    assert sys.getrefcount(ids) == held + 2
    del views[0]
    assert sys.getrefcount(ids) == held + 1
    del ids
    assert views[0].tolist() == [2, 3, 4, 5, 6, 7, 8]
    views[0][0] = 7  # it is memory of its own
    del views
    assert alive() is None
