"""Windows of whole documents, against what the file has."""

from pathlib import Path

import numpy as np
import pytest

from trainer.components.loss import IGNORED
from trainer.errors import TrainerError
from trainer.tokens.manifest import Manifest, Shard
from trainer.tokens.packed_windows import PackedWindows, open_windows
from trainer.tokens.packing import pack
from trainer.tokens.token_file import TokenFile

END = 0


def token_file(folder: Path, lengths: list[int], *, has_mask: bool = True) -> TokenFile:
    """Documents of so many tokens, the last of each its end; every other token counts."""
    ids = np.arange(1, sum(lengths) + 1, dtype="<u2")
    ids[np.cumsum(lengths) - 1] = END
    ids.tofile(folder / "train.bin")
    (np.arange(len(ids)) % 2).astype(np.uint8).tofile(folder / "train.mask")
    shard = Shard("train.bin", 0, len(ids), len(lengths), 0, "", len(ids) // 2, "")
    template = "" if has_mask else None
    manifest = Manifest(4, "uint16", len(ids), len(lengths), 1 << 16, "", END, 0, "", (shard,), (), template)
    return TokenFile(folder, "train", manifest)


@pytest.mark.parametrize("has_mask", [True, False])
def test_every_document_comes_whole_and_once_an_epoch(tmp_path: Path, has_mask: bool) -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 18, 200).tolist()
    file = token_file(tmp_path, lengths, has_mask=has_mask)
    windows = PackedWindows(file, 16, 0)
    ids, mask = file.tokens, file.read_mask(0, len(file))
    orders = []
    for epoch in range(3):
        seen: list[int] = []
        first = epoch * windows.per_epoch
        inputs, targets = windows.rows([(number, 0) for number in range(first, first + windows.per_epoch)], 16)
        for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
            place = 0
            while place < 16 and row[place]:
                begin = row[place] - 1  # where the document begins in the file
                length = int((ids[begin:] == END).argmax()) + 1
                document = ids[begin : begin + length].tolist()
                assert row[place : place + length] == document[: 16 - place]
                counted = mask[begin + 1 : begin + length]
                expected = [i if c else IGNORED for i, c in zip(document[1:], counted, strict=True)]
                assert wanted[place : place + length - 1] == expected
                seen.append(begin)
                place += length
            assert all(target == IGNORED for target in wanted[place:])
        assert sorted(seen) == [0, *np.cumsum(lengths)[:-1].tolist()]
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]
    again = open_windows("packed", file, 16, 0)
    assert all((one == other).all() for one, other in zip(windows.batch(7, 3), again.batch(7, 3), strict=True))
    assert 0.9 < windows.fill <= 1


def test_a_window_by_hand(tmp_path: Path) -> None:
    """Ids 1 2 end and 4 5 6 end, of which the second, the fourth and the sixth count."""
    [inputs], [targets] = PackedWindows(token_file(tmp_path, [3, 4]), 8, 0).batch(0, 1)
    assert inputs.tolist() == [4, 5, 6, END, 1, 2, 0, 0]
    assert targets.tolist() == [IGNORED, 6, IGNORED, IGNORED, 2, IGNORED, IGNORED, IGNORED]


def test_documents_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = token_file(tmp_path, [3, 10, 11, 12])
    with pytest.raises(TrainerError, match=r"2 of 4 documents .* context of 9 tokens, the longest needs 11; encode"):
        PackedWindows(file, 9, 0)
    assert PackedWindows(file, 12, 0).per_epoch == 3


def test_packing_against_the_rule_in_words() -> None:
    """The longest document that is left goes where it leaves least room."""
    lengths = np.random.default_rng(1).integers(1, 21, 300)
    windows = pack(lengths, 20, 0)
    rooms: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else 20) - length)
    assert sorted(20 - sum(lengths[each] for each in window) for window in windows) == sorted(rooms)
    assert sorted(each for window in windows for each in window) == list(range(300))
    assert pack(lengths, 20, 0) == windows != pack(lengths, 20, 1)
