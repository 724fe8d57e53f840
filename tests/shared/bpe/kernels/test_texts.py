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
