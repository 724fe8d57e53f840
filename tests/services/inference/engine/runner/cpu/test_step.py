"""The compiled step against the Transformer in torch, and against itself in other company."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.inference.engine.runner.cpu.panels import KV_KINDS
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.types import BLOCK_SIZE
from shared.lm import Transformer
from tests.services.inference.engine.runner.cpu.conftest import (
    CONFIGS,
    CONTEXT_LENGTH,
    MAX_ROWS,
    MAX_STEP_TOKENS,
    NUM_BLOCKS,
    MakeRunner,
    logits_of,
)


class Sequence(NamedTuple):
    """One to be run: its tokens, cut into chunks, and the blocks that it gets."""

    tokens: list[int]
    chunks: list[int]
    blocks: list[int]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_logits_are_those_of_the_model_in_torch(
    name: str, num_threads: int, models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    model = models[name]
    tokens = torch.randint(model.config.vocab_size, (2, 70), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tokens).numpy()
    runner = make_runner(model, num_threads)
    blocks = [[7, 2, 9, 4, 0], [1, 39, 3, 8, 5]]
    found: list[list[np.ndarray]] = [[], []]
    # A prompt beside a shorter one, then the rest of it beside single tokens.
    steps = [
        [(0, 0, 33), (1, 0, 17)],
        [(0, 33, 34), (1, 17, 70)],
        *[[(0, start, start + 1)] for start in range(34, 70)],
    ]
    for step in steps:
        segments = [Segment(tokens[row, begin:end].tolist(), begin, blocks[row]) for row, begin, end in step]
        for (row, _, _), logits in zip(step, logits_of(runner, segments), strict=True):
            found[row].append(logits)
    for row in (0, 1):
        np.testing.assert_allclose(np.concatenate(found[row]), expected[row], rtol=1e-4, atol=1e-4)


@st.composite
def batches(draw: st.DrawFn, vocab_size: int) -> list[Sequence]:
    """Sequences with blocks of their own, in any order."""
    free = draw(st.permutations(range(NUM_BLOCKS)))
    sequences = []
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, min(CONTEXT_LENGTH, 75)))
        tokens = draw(st.lists(st.integers(0, vocab_size - 1), min_size=length, max_size=length))
        chunks, left = [], length
        while left:
            chunks.append(draw(st.sampled_from([1, 2, 3, 7, 16, 40])) if len(chunks) < 12 else left)
            chunks[-1] = min(chunks[-1], left)
            left -= chunks[-1]
        count = -(-length // BLOCK_SIZE)
        sequences.append(Sequence(tokens, chunks, free[:count]))
        free = free[count:]
    return sequences


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_row_depends_on_nothing_but_its_tokens(
    name: str, models: dict[str, Transformer], make_runner: MakeRunner, data: st.DataObject
) -> None:
    """B29: bit for bit the same alone, token by token, in other chunks, other blocks, with neighbors, in threads."""
    model = models[name]
    sequences = data.draw(batches(model.config.vocab_size))
    kind = data.draw(st.sampled_from([*KV_KINDS.values()]))
    runner = make_runner(model, data.draw(st.sampled_from([1, 2, 3])), kv_kind=kind)
    alone = make_runner(model, kv_kind=kind)
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    starts = [0] * len(sequences)
    chunks = [list(sequence.chunks) for sequence in sequences]
    while any(chunks):
        step, room = [], MAX_STEP_TOKENS
        for row, sequence in enumerate(sequences):
            if chunks[row] and chunks[row][0] <= room and data.draw(st.booleans() if step else st.just(True)):
                size = chunks[row].pop(0)
                room -= size
                begin = starts[row]
                step.append((row, Segment(sequence.tokens[begin : begin + size], begin, sequence.blocks)))
                starts[row] += size
        for (row, _), logits in zip(step, logits_of(runner, [segment for _, segment in step]), strict=True):
            found[row].append(logits)
    for row, sequence in enumerate(sequences):
        blocks = list(range(-(-len(sequence.tokens) // BLOCK_SIZE)))
        for position, token in enumerate(sequence.tokens):
            [logits] = logits_of(alone, [Segment([token], position, blocks)])
            found_here = np.concatenate(found[row])[position]
            assert logits[0].tobytes() == found_here.tobytes(), f"row {row}, position {position}"


@pytest.mark.parametrize("kind", KV_KINDS.values(), ids=KV_KINDS.keys())
def test_what_is_no_number_stays_in_its_row(kind: int, models: dict[str, Transformer], make_runner: MakeRunner) -> None:
    """B48: neighbors, and who gets its blocks and its place in the step afterwards, see nothing of it."""
    expected = make_runner(models["odd widths"], kv_kind=kind)
    model = copy.deepcopy(models["odd widths"])
    poison, tokens = 3, list(range(10, 40))
    model.get_parameter("model.embed_tokens.weight").data[poison] = torch.nan
    runner = make_runner(model, kv_kind=kind)
    healthy = logits_of(expected, [Segment(tokens, 0, [0, 1])])[0]
    sick, other = logits_of(runner, [Segment([poison] * 20, 0, [4, 5]), Segment(tokens, 0, [6, 7])])
    assert np.isnan(sick).all()
    assert other.tobytes() == healthy.tobytes()
    for blocks in ([5, 4], [4, 5]):
        assert logits_of(runner, [Segment(tokens, 0, blocks)])[0].tobytes() == healthy.tobytes()


@pytest.mark.parametrize("kind", KV_KINDS.values(), ids=KV_KINDS.keys())
def test_a_copied_block_goes_on_by_itself(kind: int, models: dict[str, Transformer], make_runner: MakeRunner) -> None:
    runner = make_runner(models["qwen3"], kv_kind=kind)
    prompt = list(range(20))
    runner.forward([Segment(prompt, 0, [3, 4])])
    runner.copy_block(4, 9)
    both = logits_of(runner, [Segment([50], 20, [3, 4]), Segment([60], 20, [3, 9])])
    for token, logits in zip((50, 60), both, strict=True):
        fresh = logits_of(make_runner(models["qwen3"], kv_kind=kind), [Segment([*prompt, token], 0, [0, 1])])[0]
        assert logits[0].tobytes() == fresh[-1].tobytes()


def test_the_whole_step_and_all_rows_fit(models: dict[str, Transformer], make_runner: MakeRunner) -> None:
    """The largest step that is allowed, and the longest context that is allowed."""
    runner = make_runner(models["grouped heads"])
    blocks = list(range(CONTEXT_LENGTH // BLOCK_SIZE))
    tokens = [7] * CONTEXT_LENGTH
    for start in range(0, CONTEXT_LENGTH, MAX_STEP_TOKENS):
        [last] = logits_of(runner, [Segment(tokens[start : start + MAX_STEP_TOKENS], start, blocks)])
    with torch.inference_mode():
        expected = models["grouped heads"](torch.tensor([tokens]))[0, -1].numpy()
    np.testing.assert_allclose(last[-1], expected, rtol=1e-4, atol=1e-4)
    rows = [Segment([row], 0, [10 + row]) for row in range(MAX_ROWS)]
    assert len({logits.tobytes() for logits in logits_of(runner, rows)}) == MAX_ROWS
