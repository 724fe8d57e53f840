"""The GPU's kernels against plain torch: on a GPU, or on the CPU by Triton's interpreter."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.inference.engine.runner.torch import runner, selector
from services.inference.engine.runner.torch.operations import (
    HeadNorms,
    LayerCache,
    Layout,
    Operations,
    Rotation,
    group_size,
)
from services.inference.engine.runner.torch.plain_operations import PlainOperations
from services.inference.engine.runner.torch.triton_operations import TritonOperations
from services.inference.engine.types import BLOCK_SIZE
from shared.lm import generate
from tests.services.inference.engine.runner.torch.test_runner import Sequences, a_request, new_model, some_tokens
from tests.services.inference.engine.triton_tests import DEVICE, NEED_TRITON

pytestmark = NEED_TRITON

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KINDS: dict[str, Operations] = {"plain": PlainOperations(), "kernels": TritonOperations()}
HEADS = {"as many keys": (2, 2, 16), "three queries a key": (6, 2, 24), "one key": (20, 1, 8)}
MAX_BLOCKS = 40


def dot_of_the_interpreter(_: Any, a: Any, b: Any, start: Any, *__: Any) -> Any:
    """The sums of a product, each in one order, as in a GPU's instruction; NumPy's depend on the place in the product.

    And those of bfloat16, which the interpreter takes for whole numbers.
    """
    from triton.runtime.interpreter import TensorHandle

    def numbers(handle: Any) -> np.ndarray:
        is_bfloat16 = handle.data.dtype == np.uint16
        data = (handle.data.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else handle.data
        return data.astype(np.float32)

    left, right, total = numbers(a), numbers(b), start.data.copy()
    for inner in range(left.shape[1]):
        total += left[:, inner, None] * right[None, inner]
    return TensorHandle(total, start.dtype.scalar)


@pytest.fixture(autouse=True)
def _dot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if DEVICE == "cpu":
        monkeypatch.setattr("triton.runtime.interpreter.InterpreterBuilder.create_dot", dot_of_the_interpreter)
    with np.errstate(all="ignore"):  # a GPU does not warn
        yield


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def assert_alike(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size", "width"), [(1, 24, 40), (5, 72, 50), (70, 130, 33)])
def test_products_are_those_of_torch(dtype: torch.dtype, rows: int, size: int, width: int) -> None:
    x, weight = random(rows, size, dtype=dtype), random(2 * width, size, dtype=dtype, seed=1, scale=0.1)
    bias, residual = random(2 * width, dtype=dtype, seed=2), random(rows, 2 * width, dtype=dtype, seed=3)
    expected = x.double() @ weight.double().T
    run = KINDS["kernels"]
    assert_alike(run.norm(x, weight[0], 1e-5), KINDS["plain"].norm(x.float(), weight[0].float(), 1e-5), dtype)
    assert_alike(run.linear(x, weight), expected, dtype)
    assert_alike(run.linear(x, weight, bias), expected + bias, dtype)
    assert_alike(run.linear(x, weight, bias, residual), expected + bias + residual, dtype)
    gate, up = expected.chunk(2, -1)
    assert_alike(run.swiglu(x, weight), torch.nn.functional.silu(gate) * up, dtype)
    logits = run.logits(x, weight)
    assert logits.dtype is torch.float32
    assert_alike(logits, expected, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_product_is_the_same_among_any_number(kind: str) -> None:
    x, weight = random(70, 72), random(66, 72, seed=1)
    expected = KINDS[kind].linear(x, weight)
    x[40:] = torch.nan
    for rows in (1, 7, 33, 41):
        assert torch.equal(KINDS[kind].linear(x[:rows], weight)[:40], expected[: min(rows, 40)])


def rotate(kind: str, name: str, dtype: torch.dtype, kv_dtype: torch.dtype, *, norm: bool) -> tuple[Tensor, ...]:
    num_heads, num_kv_heads, dim = HEADS[name]
    qkv = random(9, (num_heads + 2 * num_kv_heads) * dim, dtype=dtype, scale=3.0)
    qkv[4, -dim] = 6e4 if dtype is torch.float16 else 1e5
    qkv[5, -2 * num_kv_heads * dim] = torch.nan
    keys, values = (torch.zeros(40, num_kv_heads, dim, device=DEVICE, dtype=kv_dtype) for _ in range(2))
    positions = torch.arange(3, 12, device=DEVICE, dtype=torch.int32)
    indices = torch.tensor([30, 2, 3, 9, 8, 7, 39, 0, 5], device=DEVICE, dtype=torch.int32)
    layout = Layout(positions, indices, indices[:0, None])
    angles = random(12, dim // 2, seed=4)
    gains = (random(dim, dtype=dtype, seed=5), random(dim, dtype=dtype, seed=6)) if norm else (None, None)
    rotation, norms = Rotation(angles.cos(), angles.sin()), HeadNorms(*gains, 1e-6)
    return KINDS[kind].rotate_and_write(qkv, LayerCache(keys, values), layout, rotation, norms), keys, values


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.float16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
)
def test_queries_keys_and_values_are_rotated_and_written(
    name: str, dtype: torch.dtype, kv_dtype: torch.dtype, norm: bool
) -> None:
    """NaN stays, and what float16 cannot hold becomes NaN."""
    for found, expected in zip(
        rotate("kernels", name, dtype, kv_dtype, norm=norm),
        rotate("plain", name, dtype, kv_dtype, norm=norm),
        strict=True,
    ):
        least = max(dtype, kv_dtype, key=TOLERANCE.__getitem__)
        torch.testing.assert_close(
            found.float(), expected.float(), rtol=TOLERANCE[least], atol=2 * TOLERANCE[least], equal_nan=True
        )
    assert found.isnan().any() == (dtype is not kv_dtype)


class Attention:
    """Queries of two sequences of different lengths over scattered blocks, of `size` tokens a group."""

    def __init__(self, name: str, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> None:
        self.heads, self.kv_heads, self.dim = HEADS[name]
        self.size = group_size(self.heads, self.kv_heads)
        shape = (2 * MAX_BLOCKS * BLOCK_SIZE, self.kv_heads, self.dim)
        self.keys, self.values = (random(*shape, dtype=kv_dtype or dtype, seed=seed) for seed in (1, 2))
        self.blocks = torch.randperm(2 * MAX_BLOCKS, generator=torch.Generator().manual_seed(3)).view(2, MAX_BLOCKS)
        self.queries = random(2, MAX_BLOCKS * BLOCK_SIZE, self.heads, self.dim, dtype=dtype, seed=4)

    def run(self, kind: str, groups: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """Attend from positions of sequences, a group for each entry."""
        positions = torch.tensor([positions for _, positions in groups], device=DEVICE, dtype=torch.int32)
        queries = torch.cat([self.queries[sequence, list(positions)] for sequence, positions in groups])
        tables = self.blocks[[sequence for sequence, _ in groups]].T.contiguous().to(DEVICE, torch.int32)
        layout = Layout(positions.flatten(), positions.flatten(), tables)
        return KINDS[kind].attend(queries, LayerCache(self.keys, self.values), layout)

    def cells(self, sequence: int, positions: Sequence[int]) -> list[int]:
        """Where positions are in the cache."""
        return [int(self.blocks[sequence, at // BLOCK_SIZE]) * BLOCK_SIZE + at % BLOCK_SIZE for at in positions]

    def expected(self, sequence: int, position: int) -> Tensor:
        """By the definition, in float64."""
        cells = self.cells(sequence, range(position + 1))
        keys, values = (
            cache[cells].double().repeat_interleave(self.heads // self.kv_heads, 1)
            for cache in (self.keys, self.values)
        )
        scores = torch.einsum("hd,shd->hs", self.queries[sequence, position].double(), keys) * self.dim**-0.5
        return torch.einsum("hs,shd->hd", scores.softmax(-1), values).flatten()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_that_of_its_definition(kind: str, name: str, dtype: torch.dtype) -> None:
    """To the first position, to the borders of chunks, and over all programs that share the positions."""
    attention = Attention(name, dtype)
    found = attention.run(kind, places := [(0, [0]), (1, [63]), (0, [64]), (1, [200]), (1, [639]), (0, [511])])
    for row, (sequence, (position,)) in zip(found, places, strict=True):
        assert_alike(row, attention.expected(sequence, position), dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HEADS)
def test_a_token_attends_the_same_alone_and_in_a_group(kind: str, name: str) -> None:
    """To the last bit, in float32: a generated token and one of a prompt, beside any others."""
    attention = Attention(name, torch.float32, torch.float16)
    start = 70
    positions = list(range(start, start + attention.size))
    together = attention.run(kind, [(1, positions), (0, positions)]).unflatten(0, (2, -1))
    for row, position in enumerate(positions[:4]):
        alone = attention.run(kind, [(0, [5]), (1, [position]), (0, [position]), (0, [600])])
        assert torch.equal(alone[1], together[0, row])
        assert torch.equal(alone[2], together[1, row])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoiled", ["keys", "values"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_later_token_without_numbers_leaves_earlier_ones_as_they_are(kind: str, spoiled: str, number: float) -> None:
    """Of its own group, whose earlier tokens may be in a block that others use; and in blocks beyond (B48)."""
    attention = Attention("as many keys", torch.float32)
    positions = list(range(70, 70 + attention.size))
    expected = attention.run(kind, [(0, positions)])
    cells = attention.cells(0, [75, *range(90, 640)])
    getattr(attention, spoiled)[cells] = number
    found = attention.run(kind, [(0, positions)])
    assert torch.equal(found[:5], expected[:5])
    assert not found[5:].isfinite().any() or spoiled == "keys"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner use them on this device, in small tiles: the interpreter takes milliseconds for a program."""
    monkeypatch.setattr(selector, "triton_unavailable_reason", lambda _: None)
    monkeypatch.setattr(runner, "_PROMPT_TILES", (16, 32))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["grouped, tied", "query/key norm, wide heads, scaled RoPE, untied"])
def test_a_runner_on_kernels_gives_the_tokens_of_the_model(name: str) -> None:
    model = new_model(name)
    tiny: Any = {"num_blocks": 20, "num_slots": 3, "max_length": 100, "max_step_tokens": 100}
    sequences = Sequences(runner.TorchRunner(model.to(DEVICE), **tiny), num_blocks=20)
    requests = {
        0: a_request(some_tokens(1), temperature=0.0),
        1: a_request(some_tokens(37, 1), temperature=0.9, top_p=0.9, seed=4),
        2: a_request(some_tokens(17, 2), temperature=1.2, top_k=30, seed=5, repetition_penalty=1.3),
    }
    for row, request in requests.items():
        sequences.open(row, request)
    for _ in range(4):
        sequences.run([sequences.segment(row) for row in requests])
    for row, request in requests.items():
        assert sequences.outputs(row) == list(generate(model, request.prompt_ids, request.params, max_tokens=4))


@pytest.mark.usefixtures("kernels")
def test_a_row_on_kernels_is_the_same_to_the_last_bit_in_any_chunks() -> None:
    """A prompt at once and beside others, or in parts of one token and more: as after preemption or a prefix hit."""
    model, results = new_model("grouped, tied").to(DEVICE), []
    for chunks, others in (([35], []), ([1, 20, 1, 13], [1, 2]), ([17, 18], [2])):
        tiny: Any = {"num_blocks": 20, "num_slots": 3, "max_length": 100, "max_step_tokens": 150}
        sequences = Sequences(runner.TorchRunner(model, **tiny), num_blocks=20, seed=len(chunks))
        sequences.open(0, a_request(some_tokens(35), num_logprobs=3, temperature=0.0))
        for other in others:
            sequences.open(other, a_request(some_tokens(5 + other, other), temperature=0.0))
        draws = []
        for chunk in [*chunks, 1]:
            rows = sequences.run([sequences.segment(row, chunk) for row in (*others, 0)])
            draws += [draw for draw in rows if draw.slot == 0]
        results.append([draw.logprobs for draw in draws])
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 2
