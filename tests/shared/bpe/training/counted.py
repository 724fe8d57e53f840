"""Tables of pretokens for tests."""

from collections.abc import Mapping

from shared.bpe.training.pretoken_counts import PretokenCounts


def counted(counts: Mapping[bytes, int]) -> PretokenCounts:
    """A table with these counts."""
    table = PretokenCounts()
    for _ in table.add_mapping(counts):
        pass  # without a limit it never fills
    return table
