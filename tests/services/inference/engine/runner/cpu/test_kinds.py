"""Steps with weights of 16 and of 8 bits."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.inference.engine.runner.cpu.kernels.intrinsics import FLOAT32
from services.inference.engine.runner.cpu.panels import KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.types import SequenceRequest
from shared.lm import ModelConfig, ModelFolderError, Transformer

CONTEXT_LENGTH = 64
CONFIG = ModelConfig(
    vocab_size=90, context_length=CONTEXT_LENGTH, d_model=72, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=12,
    d_ff=100, qk_norm=True, tie_embeddings=False, initializer_range=0.2,
)  # fmt: skip
Tensors = dict[str, NDArray[np.float32]]


class NoSampler:
    """The runner's logits are looked at; nothing is sampled."""

    def open(self, row: int, request: SequenceRequest, output: Sequence[int] = ()) -> None: ...

    def close(self, row: int) -> None: ...

    def sample(self, logits: object, slots: Sequence[int]) -> list[object]:
        raise AssertionError("the runner was not asked for this")

    def score(self, logits: object, targets: Sequence[int], num_logprobs: int) -> list[object]:
        raise AssertionError("the runner was not asked for this")


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    torch.manual_seed(3)
    return {name: value.numpy() for name, value in Transformer(CONFIG).state_dict().items()}


thread_pool = functools.cache(KernelThreadPool)


def runner(tensors: Tensors, kind: int, num_threads: int = 1, config: ModelConfig = CONFIG) -> CpuRunner:
    return CpuRunner(
        config,
        pack_weights(config, tensors, kind),
        NoSampler(),  # type: ignore[arg-type]
        thread_pool(num_threads),
        num_blocks=16,
        num_slots=8,
        max_step_tokens=64,
        context_length=CONTEXT_LENGTH,
    )


def logits_of(model: CpuRunner, prompts: Sequence[Sequence[int]], chunk: int = CONTEXT_LENGTH) -> NDArray[np.float32]:
    """After the last token of each prompt; all run side by side, in steps of `chunk` tokens of each."""
    logits = np.zeros((len(prompts), CONFIG.vocab_size), np.float32)
    for start in range(0, max(map(len, prompts)), chunk):
        running = [number for number, prompt in enumerate(prompts) if start < len(prompt)]
        segments = [
            Segment(prompts[number][start : start + chunk], start, range(number * 4, number * 4 + 4))
            for number in running
        ]
        ends = model.forward(segments)
        logits[running] = model.logits([end - 1 for end in ends])
    return logits


def prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, CONFIG.vocab_size, size=length).tolist() for length in lengths]


def test_float16_weights_are_those_of_float32_rounded(tensors: Tensors) -> None:
    """Bitwise: torch rounds the weights, and the step in float32 says what their logits are."""
    weights = dict(tensors)
    tiny = torch.finfo(torch.float16).smallest_normal
    head = weights["lm_head.weight"].copy()
    head[:4] = 0
    head[:4, 0] = [tiny, -tiny, tiny / 4, -tiny * 1.25]  # the last two are subnormal, or round to it
    weights["lm_head.weight"] = head
    rounded = {
        key: torch.from_numpy(value).half().float().numpy() if value.ndim == 2 and "embed" not in key else value
        for key, value in weights.items()
    }
    ids = prompts([1, 9, 16])
    logits = logits_of(runner(weights, KINDS["float16"]), ids)
    assert np.array_equal(logits, logits_of(runner(rounded, FLOAT32), ids))
    assert np.all(logits != 0)


def test_bfloat16_rounds_the_weights_and_inputs_of_all_layers(tensors: Tensors) -> None:
    """torch's model, with weights and inputs of all linear layers rounded to bfloat16, and products in float32."""
    model = Transformer(CONFIG).eval()
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    ids = prompts([30, 17, 12])
    with torch.no_grad():
        exact = [model(torch.tensor([one]))[0, -1].numpy() for one in ids]
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(module.weight.bfloat16().float())
                module.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16().float(),))
        expected = [model(torch.tensor([one]))[0, -1].numpy() for one in ids]
    found = logits_of(runner(tensors, KINDS["bfloat16"]), ids)
    # Where torch and the step differ in the last bit of a float, a few inputs are rounded the other way.
    assert np.abs(found - expected).max() < 0.3 * np.abs(np.subtract(expected, exact)).max()
    assert np.abs(found - expected).max() < 0.01 * np.std(exact)


def test_weights_beyond_float16_are_refused(tensors: Tensors) -> None:
    weights = tensors["model.layers.1.mlp.up_proj.weight"].copy()
    weights[3, 5] = -70_000
    large = {**tensors, "model.layers.1.mlp.up_proj.weight": weights}
    with pytest.raises(ModelFolderError, match=r"layers.1.mlp.up_proj.weight holds .* 70000, but float16 .* bfloat16"):
        pack_weights(CONFIG, large, KINDS["float16"])
    pack_weights(CONFIG, large, KINDS["bfloat16"])


def test_eight_bits_are_those_of_blocks_everywhere(tensors: Tensors) -> None:
    """torch's model, with weights and inputs of all linear layers rounded in blocks of 32, as by llama.cpp's q8_0."""
    model = Transformer(CONFIG).eval()
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    ids = prompts([30, 17, 12])
    with torch.no_grad():
        exact = [model(torch.tensor([one]))[0, -1].numpy() for one in ids]
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(rounded(module.weight, bits_of_scale=8))
                module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
        expected = [model(torch.tensor([one]))[0, -1].numpy() for one in ids]
    found = logits_of(runner(tensors, KINDS["int8"]), ids)
    # Where torch and the step differ in the last bit of a float, a few inputs are rounded the other way.
    assert np.abs(found - expected).max() < 0.3 * np.abs(np.subtract(expected, exact)).max()
    assert np.abs(found - expected).max() < 0.02 * np.std(exact)


def rounded(values: torch.Tensor, bits_of_scale: int = 24) -> torch.Tensor:
    """Whole multiples of a scale for each 32 along the last axis, which is rounded up to as many bits."""
    count = values.shape[-1]
    blocks = torch.nn.functional.pad(values.double(), (0, -count % 32)).unflatten(-1, (-1, 32))
    fraction, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True) / 127)
    scale = torch.ldexp(torch.ceil(fraction * 2**bits_of_scale) / 2**bits_of_scale, exponent)
    return (torch.round(blocks / scale).nan_to_num(0) * scale).flatten(-2)[..., :count].to(values.dtype)


@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_is_bitwise_the_same_in_every_company(name: str, tensors: Tensors) -> None:
    """B71: alone or among others, in one step or in chunks, with one thread or three."""
    ids = prompts([14, 1, 16, 5])
    alone = [logits_of(runner(tensors, KINDS[name]), [one])[0] for one in ids]
    for num_threads, chunk in ((1, 64), (3, 64), (2, 1), (1, 5)):
        assert np.array_equal(logits_of(runner(tensors, KINDS[name], num_threads), ids, chunk), alone)


@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_that_is_not_finite_keeps_to_itself(name: str, tensors: Tensors) -> None:
    """B48: a weight that is NaN spoils the sequence that meets it, and no other."""
    embedding = tensors["model.embed_tokens.weight"].copy()
    embedding[7, 3] = np.nan
    ids = [[1, 2, 3], [4, 7, 5], [6, 8]]
    model = runner({**tensors, "model.embed_tokens.weight": embedding}, KINDS[name])
    logits = logits_of(model, ids)
    assert np.all(np.isnan(logits[1]))
    assert np.array_equal(logits[::2], logits_of(runner(tensors, KINDS[name]), ids)[::2])


def test_packed_weights_take_what_is_said(tensors: Tensors) -> None:
    for name, bits in (("float32", 32), ("bfloat16", 16), ("float16", 16), ("int8", 8.5)):
        weights = pack_weights(CONFIG, tensors, KINDS[name])
        # Inputs and outputs filled up to whole panels of 32, gates and inner outputs to whole turns of 16 before.
        layer = 96 * (128 + 96 + 224) + 128 * 96
        assert weights.packed.nbytes == (2 * layer + 96 * 96) * bits / 8


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_panels_are_the_same_however_many_are_packed_at_once(
    tensors: Tensors, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pack_weights(CONFIG, tensors, kind).packed
    for count in (1, 2):
        monkeypatch.setattr("services.inference.engine.runner.cpu.weights._PANELS_AT_ONCE", count)
        assert np.array_equal(pack_weights(CONFIG, tensors, kind).packed, expected)


def test_a_tied_embedding_is_rounded_as_the_output_only(tensors: Tensors) -> None:
    config = dataclasses.replace(CONFIG, tie_embeddings=True)
    tied = {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    untied = {**tied, "lm_head.weight": tied["model.embed_tokens.weight"]}
    ids = prompts([6])
    for kind in KINDS.values():
        both = logits_of(runner(tied, kind, config=config), ids), logits_of(runner(untied, kind), ids)
        assert np.array_equal(*both)
