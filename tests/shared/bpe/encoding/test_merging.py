import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe.encoding.merging import MergeTable, merge_by_heap, merge_by_scanning, merge_pretoken
from tests.growth import growth

A = ord("a")
# B18: (a,a) -> aa, (aa,a) -> aaa, (aa,aa) -> aaaa; expected ids computed with tokenizers 0.23.3.
B18: MergeTable = {(A, A): (0, 256), (256, A): (1, 257), (256, 256): (2, 258)}
B18_EXPECTED = [[97], [256], [257], [258], [256, 257], [258, 256], [258, 257], [258, 258]]


@pytest.mark.parametrize("merge", [merge_by_scanning, merge_by_heap, merge_pretoken])
@pytest.mark.parametrize("n", range(1, 9))
def test_B18_lowest_rank_first_from_the_left(merge, n: int) -> None:
    assert merge([A] * n, B18) == B18_EXPECTED[n - 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 2**32))
def test_heap_equals_scanning(ids: list[int], seed: int) -> None:
    # Ranks in any order, also merges that come before those that make their parts.
    random_ = random.Random(seed)
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    ranks = random_.sample(range(40), 40)
    for rank in ranks:
        known = 3 + len(merges)
        merges.setdefault((random_.randrange(known), random_.randrange(known)), (rank, known))
    assert merge_by_heap(ids, merges) == merge_by_scanning(ids, merges)


def test_long_piece_takes_about_linear_time() -> None:
    # A quadratic merge would take 256 times as long.
    assert growth(lambda length: merge_pretoken([A] * length, B18), 1 << 12, 1 << 16) < 100
