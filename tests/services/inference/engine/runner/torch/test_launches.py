"""How many kernels a step launches on a GPU, and that nothing in it waits: counted on a simulated device."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from services.inference.engine.runner.protocol import Segment
from services.inference.engine.runner.torch import runner, selector
from services.inference.engine.runner.torch.cache import PagedCache
from services.inference.engine.runner.torch.operations import Rotation
from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.runner.torch.tile import Tile, TileInput, TileShape
from services.inference.engine.runner.torch.weights import merged_weights
from services.inference.engine.sampler.torch_sampler import Plan, TorchSampler
from shared.lm import ModelConfig, Transformer
from tests.pretend_cuda import PretendCuda
from tests.services.inference.engine.runner.torch.test_runner import a_request, new_model, new_runner, some_tokens

aten = torch.ops.aten

# CS336's shape (22.7 million parameters) and SmolLM2-135M's, without biases.
SMALL = ModelConfig(
    vocab_size=10_000, context_length=2048, d_model=512, num_layers=4, num_heads=16, num_kv_heads=16, head_dim=32,
    d_ff=1344, tie_embeddings=False,
)  # fmt: skip
DEEP = ModelConfig(
    vocab_size=49_152, context_length=2048, d_model=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
    d_ff=1536,
)  # fmt: skip
GREEDY, TEMPERATURE, PENALTIES, FULL = (
    Plan(False, False, 0), Plan(True, False, 0), Plan(True, True, 0), Plan(True, True, 32)
)  # fmt: skip

_LAUNCHES = {"ownlm::attend": 2}  # of operators that have more than one
_NO_LAUNCH = {"prim::device", "aten::empty", "aten::empty_like", "aten::detach"}


class Launches(TorchDispatchMode):
    """Counts operators that launch a kernel: those that allocate or only look at a tensor otherwise do not."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if not func.is_view and name not in _NO_LAUNCH:
            self.counts[name] += _LAUNCHES.get(name, 1)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    with Launches() as mode:
        yield mode.counts


@pytest.fixture
def fake(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """GPUs whose tensors have shapes, and no values."""
    monkeypatch.setattr(selector, "triton_unavailable_reason", lambda _: None)
    monkeypatch.setattr(Transformer, "reset_parameters", lambda _: None)  # random numbers would need a real one
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        yield
    torch.set_default_dtype(torch.float32)


def step(
    config: ModelConfig,
    dtype: torch.dtype,
    shape: TileShape,
    plan: Plan,
    *,
    blocks: int = 128,
    has_kernel: bool = False,
) -> Counter[str]:
    """What a tile and a draw of 32 rows launch."""
    with torch.device("cuda:0"):
        torch.set_default_dtype(dtype)  # reset by the fixture
        model = Transformer(config).eval()
        torch.set_default_dtype(torch.float32)
        device = model.output_weight.device
        cache, hidden = PagedCache(config, 129, device, dtype), torch.zeros(601, config.d_model, dtype=dtype)
        run, logits = selector.operations_for(device), torch.zeros(32, config.vocab_size)
        angles = torch.zeros(2, 16 * blocks, config.head_dim // 2)
        tile = Tile(model, merged_weights(model), cache, Rotation(*angles), operations=run, hidden=hidden)
        tile_input = TileInput(shape, blocks, device, spare_block=128, spare_row=600)
        sampler = TorchSampler(config.vocab_size, 32, device, has_kernel=has_kernel)
        controls = torch.zeros(32, 14, dtype=torch.float64)
    with counted() as counts:
        tile.run(tile_input)
        logits.copy_(run.logits(hidden.index_select(0, controls[:, -1].int()), model.output_weight))
        sampler.sample_on_device(logits, controls, plan)
    return counts


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("config", "limit"), [(SMALL, 60), (DEEP, 350)])
def test_kernels_are_nine_a_layer_at_any_position(dtype: torch.dtype, config: ModelConfig, limit: int) -> None:
    """Of a step of 32 rows, however they are sampled, and of a prompt of 512 tokens; products are four a layer."""
    counts = step(config, dtype, TileShape(32, 1), FULL, has_kernel=True)
    assert counts.total() < limit
    assert counts.total() == 9 * config.num_layers + 9
    assert counts["ownlm::linear"] == 4 * config.num_layers + 1
    assert counts["ownlm::draw"] == 1
    assert step(config, dtype, TileShape(32, 16), FULL, blocks=8192, has_kernel=True) == counts


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("plan", "draw"), [(GREEDY, 7), (TEMPERATURE, 30), (PENALTIES, 72), (FULL, 94)])
def test_a_draw_without_the_kernel_does_what_rows_ask_for(plan: Plan, draw: int) -> None:
    """Only rows with top_k or top_p are sorted."""
    counts = step(SMALL, torch.bfloat16, TileShape(32, 1), plan)
    assert counts.total() <= 9 * SMALL.num_layers + 8 + draw
    assert ("aten::sort" in counts) is (plan is FULL)


class Copies(TorchDispatchMode):
    """Notes what may wait for a GPU: copies between it and the host, and operators that need a value of it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[bool] = []  # whether each is asynchronous
        self.to_device: list[bool] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in {aten.copy_.default, aten._to_copy.default}:
            source, target = (args[1], args[0]) if func is aten.copy_.default else (args[0], result)
            asynchronous = bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
            if source.device.type != target.device.type and source.ndim:
                (self.to_host if target.device.type == "cpu" else self.to_device).append(asynchronous)
        elif func.name().split(".")[0] in _WAITS or (func is aten.index.Tensor and _has_mask(args[1])):
            self.waits.append(func.name())
        return result


_WAITS = {f"aten::{name}" for name in (
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "repeat_interleave", "equal",
)}  # fmt: skip


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in indices)


@pytest.fixture
def uncaptured(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> TorchRunner:
    """On a GPU whose graphs are run call by call."""
    monkeypatch.setattr(runner.Graphs, "capture", lambda _, function: function)
    monkeypatch.setattr(runner, "_PROMPT_TILES", (16, 32))
    return new_runner(new_model("grouped, tied").to("cuda"))


@pytest.mark.parametrize("num_logprobs", [None, 2])
def test_a_step_waits_once_for_its_tokens(uncaptured: TorchRunner, num_logprobs: int | None) -> None:
    """With every kind of row: what opens slots, prompts and tokens are copied without waiting, and no value is read."""
    requests = [
        a_request([1], temperature=0.0, num_logprobs=num_logprobs),
        a_request([1], temperature=0.9),
        a_request([1], temperature=1.2, top_k=5, repetition_penalty=1.3),
        a_request([1], temperature=0.0, presence_penalty=1.3, logit_bias=((3, 1.0),)),
    ]
    for count in range(1, 5):
        with Copies() as copies:
            for slot, request in enumerate(requests[:count]):
                uncaptured.open_slot(slot, request)
            uncaptured.run([Segment(some_tokens(20), 0, (0, 1))])
            assert copies.to_host == []
            segments = [Segment([5], 0, (2 + slot,), (slot,)) for slot in range(count)]
            assert len(uncaptured.run(segments).sampled_tokens) == count
        assert copies.to_host == [True]
        assert len(copies.to_device) >= 3
        assert all(copies.to_device)
        assert copies.waits == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.ones(2)),
    ],
)
def test_what_waits_is_noticed(cuda: PretendCuda, wait: Callable[[torch.Tensor], Any]) -> None:
    """The test above could not fail otherwise."""
    tensor = torch.ones(2, device="cuda")
    with Copies() as copies:
        wait(tensor.sum() if wait.__code__.co_names == ("item",) else tensor)
    assert copies.waits or not all(copies.to_host + copies.to_device)
