"""The windows of runs whose steps differ in shape."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.tokens.test_windows import token_file
from trainer.settings.stages import step_shapes
from trainer.tokens.staged_windows import StagedWindows
from trainer.tokens.windows import ShuffledWindows, UniformWindows


def staged(path: Path, count: int, length: int, batch: str, context: str, size: int = 4) -> StagedWindows:
    windows = ShuffledWindows(token_file(path / "t.bin", count), length, seed=1)
    return StagedWindows(windows, step_shapes(batch, context, size, length))


def targets_of(batches: StagedWindows, step: int) -> list[list[int]]:
    """The scored targets of each row, checked to follow their inputs."""
    found = []
    for inputs, targets in zip(*batches.batch(step), strict=True):
        scored = int((targets != -100).sum())
        assert (targets[:scored] == inputs[:scored] + 1).all()
        assert (targets[scored:] == -100).all()
        assert (inputs[scored:] == 0).all()
        found.append(targets[:scored].tolist())
    return found


def test_one_stage_is_the_plain_order(tmp_path: Path) -> None:
    batches = staged(tmp_path, 500, 16, "", "")
    for step in (0, 3, 40):
        for found, expected in zip(batches.batch(step), batches.windows.batch(step, 4), strict=True):
            assert torch.equal(found, expected)


def test_a_batch_schedule_alone_cuts_the_plain_order_elsewhere(tmp_path: Path) -> None:
    batches = staged(tmp_path, 5000, 16, "1:2,2-4:6", "")
    sizes = [batches.batch(step)[0].shape[0] for step in range(9)]
    assert sizes == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    joined = torch.cat([batches.batch(step)[1] for step in range(9)])
    assert torch.equal(joined, batches.windows.batch(0, sum(sizes))[1])


SCHEDULES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), max_size=3)


def as_text(stages: list[tuple[int, int]], most: int) -> str:
    ends = itertools.accumulate(steps for _, steps in stages)
    return ",".join(f"{min(value, most)}:{end}" for (value, _), end in zip(stages, ends, strict=True))


@pytest.mark.extended
@settings(max_examples=60, deadline=None)
@given(count=st.integers(14, 300), length=st.integers(2, 12), batch=SCHEDULES, context=SCHEDULES)
def test_no_token_comes_twice_in_an_epoch(
    count: int, length: int, batch: list[tuple[int, int]], context: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Whatever the stages: each row is part of one full window, and no part is in two rows."""
    batches = staged(tmp_path_factory.mktemp("t"), count, length, as_text(batch, 12), as_text(context, length), size=3)
    per_epoch = batches.windows.per_epoch
    seen: dict[int, list[int]] = {}
    for step in range(batches.shapes.stages[-1].first + 12):
        index = batches.shapes.index(step)
        shape = batches.shapes.stages[index]
        inputs, targets = batches.batch(step)
        assert inputs.shape == targets.shape == (shape.windows, shape.length)
        part = batches._parts[index]
        first = (step - shape.first) * shape.windows
        for row, found in enumerate(targets_of(batches, step)):
            window, _ = batches._place(part, first + row)
            seen.setdefault(window // per_epoch, []).extend(found)
    for found in seen.values():
        assert len(found) == len(set(found))


def test_what_is_left_out_is_a_remainder_or_less_than_a_window_for_each_stage(tmp_path: Path) -> None:
    """A stage of 5-token windows of full ones of 16 leaves out 1 in 16; one of 8 and one of 16 leave out none."""
    count = 16 * 200 + 1
    for context, share in (("5:60", 1 / 16), ("8:60", 0), ("4-16:60", 0.5), ("16:60", 0)):
        batches = staged(tmp_path, count, 16, "", context)
        last = batches.shapes.stages[-1]
        part = batches._parts[-1]
        tokens = sum(len(row) for step in range(last.first) for row in targets_of(batches, step))
        used = 16 * part.first  # of the order's tokens
        assert tokens <= used
        assert used - tokens <= share * used + 16 * len(batches.shapes.stages)


def test_rows_of_a_batch_come_from_different_windows(tmp_path: Path) -> None:
    """Pieces of one window would be of one text: a batch takes the same piece of each window in turn."""
    batches = staged(tmp_path, 16 * 400, 16, "", "4:50")
    for step in (0, 13, 40):
        starts = sorted(row[0] for row in targets_of(batches, step) if row)
        assert min(np.diff(starts)) >= 4 * 3  # pieces of neighboring windows at the nearest


def test_every_batch_is_a_function_of_its_number_alone(tmp_path: Path) -> None:
    """So a run resumed within a stage, or at its edge, sees what the uninterrupted one sees."""
    in_order = staged(tmp_path, 900, 16, "2:7,3:11", "4-12:9")
    expected = [in_order.batch(step) for step in range(16)]
    for step in (15, 7, 8, 9, 3, 0, 11):
        again = staged(tmp_path, 900, 16, "2:7,3:11", "4-12:9").batch(step)
        assert all(torch.equal(found, true) for found, true in zip(again, expected[step], strict=True))


def test_windows_drawn_uniformly_are_cut_the_same_way(tmp_path: Path) -> None:
    """Every row is a piece of the window that the plain order has at its number, and full."""
    windows = UniformWindows(token_file(tmp_path / "t.bin", 3000), 16, seed=5)
    batches = StagedWindows(windows, step_shapes("2:3,3:6", "8:4", 4, 16))
    plain = windows.batch(0, 40)[0]
    assert torch.equal(batches.batch(9)[0], plain[part_of(batches, 9) :][:4])
    for step in range(4):
        for row, targets in enumerate(targets_of(batches, step)):
            assert len(targets) == 8
            window, offset = batches._place(batches._parts[batches.shapes.index(step)], row_of(batches, step) + row)
            assert targets == (plain[window, offset : offset + 8] + 1).tolist()


def row_of(batches: StagedWindows, step: int) -> int:
    """The first row of a step in its stage."""
    stage = batches.shapes.stages[batches.shapes.index(step)]
    return (step - stage.first) * stage.windows


def part_of(batches: StagedWindows, step: int) -> int:
    """The first window of a step of whole windows."""
    return batches._parts[batches.shapes.index(step)].first + row_of(batches, step)
