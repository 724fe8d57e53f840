"""Keys and values of 16 bits: how they are rounded, and what a step makes of them."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from services.inference.engine.errors import NO_DISTRIBUTION
from services.inference.engine.runner.cpu.panels import KV_KINDS
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import FailEvent, SequenceRequest, TokenEvent
from shared.lm import ModelConfig, SamplingParams, Transformer
from shared.lm.attention import attend
from tests.services.inference.engine.runner.cpu.conftest import CONFIGS, MAX_STEP_TOKENS, MakeRunner, logits_of

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TOKENS = 50


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("of_model", ["llama3", "qwen3"])
def test_keys_and_values_are_those_of_float32_rounded(
    name: str, of_model: str, models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    """Bitwise, by torch's rounding, in the first layer, which reads no rounded number.

    Biases give every range: normal, subnormal, too small, in the middle between two numbers of 16 bits, beyond them.
    """
    dtype, model = HALVES[name], copy.deepcopy(models[of_model])
    attention = model.model.layers[0].self_attn
    count = attention.v_proj.weight.shape[0]
    attention.v_proj.weight.data[torch.arange(count) % 5 != 0] = 0
    attention.v_proj.bias = torch.nn.Parameter(torch.from_numpy(extremes(count)))
    attention.k_proj.weight.data.mul_(torch.logspace(-30, 3, len(attention.k_proj.weight))[:, None])
    config = dataclasses.replace(model.config, attention_bias="qkvo")
    model = with_config(model, config)
    memory = {}
    for kv_dtype in ("float32", name):
        runner = make_runner(model, kv_kind=KV_KINDS[kv_dtype])
        runner.forward([Segment(list(range(TOKENS)), 0, [3, 0, 2, 5])])
        numbers = runner._cache.memory.view(np.float32 if kv_dtype == "float32" else np.int16)
        memory[kv_dtype] = numbers.reshape(runner.num_blocks, config.num_layers, -1)[:, 0]
    exact = torch.from_numpy(memory["float32"])
    expected = exact.to(dtype)
    if dtype is torch.float16:
        expected[~expected.isfinite()] = torch.nan
    found = torch.from_numpy(memory[name]).view(dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    is_number = ~expected.isnan()
    assert torch.equal(found.view(torch.int16)[is_number], expected.view(torch.int16)[is_number])
    assert expected.isnan().any()
    tiny = torch.finfo(dtype).smallest_normal
    assert ((expected != 0) & (expected.abs() < tiny)).any()


def extremes(count: int) -> np.ndarray:
    """Numbers whose rounding is not obvious, both signs, over and over."""
    halfway = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 2049.0, 2051.0]  # between two numbers of 16 bits
    small = [2**-14, 2**-14 * (1 - 2**-11), 2**-24, 2**-25, 3 * 2**-26, 2**-26, 1e-40, 2.0**-133, 3 * 2.0**-134, 0.0]
    large = [65504.0, 65519.9, 65520.0, 65536.0, 1e30, 3.4e38, np.inf, np.nan]
    numbers = itertools.cycle(sign * number for number in halfway + small + large for sign in (1, -1))
    return np.array(list(itertools.islice(numbers, count)), np.float32)


def with_config(model: Transformer, config: ModelConfig) -> Transformer:
    """The same weights under another configuration; biases that it has not are 0."""
    other = Transformer(config).eval()
    other.load_state_dict({**{name: torch.zeros_like(value) for name, value in other.state_dict().items()},
                           **model.state_dict()})  # fmt: skip
    return other


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("of_model", CONFIGS)
def test_logits_are_those_of_torch_with_rounded_keys_and_values(
    name: str, of_model: str, models: dict[str, Transformer], make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks whose last tokens are in blocks that are not full; the rounding itself moves logits further."""
    dtype, model = HALVES[name], models[of_model]
    tokens = torch.randint(model.config.vocab_size, (1, 70), generator=torch.Generator().manual_seed(2))

    def attend_rounded(queries: Tensor, keys: Tensor, values: Tensor, *others: object) -> Tensor:
        return attend(queries, keys.to(dtype).float(), values.to(dtype).float(), *others)  # type: ignore[arg-type]

    with torch.inference_mode():
        exact = model(tokens)[0].numpy()
        monkeypatch.setattr("shared.lm.attention.attend", attend_rounded)
        expected = model(tokens)[0].numpy()
    runner = make_runner(model, kv_kind=KV_KINDS[name])
    found = []
    for start, end in itertools.pairwise((0, 33, 34, 40, 70)):
        [logits] = logits_of(runner, [Segment(tokens[0, start:end].tolist(), start, [9, 4, 6, 1, 2])])
        found.append(logits)
    error = np.abs(np.concatenate(found) - expected)
    # A key whose last bits differ between torch and the step may be rounded the other way.
    assert np.median(error) < 0.25 * np.median(np.abs(exact - expected))
    assert error.max() < np.abs(exact - expected).max()


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("of_model", CONFIGS)
def test_a_sequence_is_bitwise_the_same_in_every_company(
    name: str, of_model: str, models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    """B71: token by token alone, or in chunks beside others, in threads."""
    model, kind = models[of_model], KV_KINDS[name]
    generator = np.random.default_rng(4)
    prompts = [generator.integers(0, model.config.vocab_size, size=length).tolist() for length in (40, 17, 3)]
    blocks = [[5, 0, 7], [1, 9], [2]]
    alone, runner = make_runner(model, kv_kind=kind), make_runner(model, 3, kv_kind=kind)
    for chunk in (MAX_STEP_TOKENS // 3, 5):
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        for start in range(0, 40, chunk):
            rows = [row for row, prompt in enumerate(prompts) if start < len(prompt)]
            segments = [Segment(prompts[row][start : start + chunk], start, blocks[row]) for row in rows]
            for row, logits in zip(rows, logits_of(runner, segments), strict=True):
                found[row].append(logits)
        for prompt, parts in zip(prompts, found, strict=True):
            for position, token in enumerate(prompt):
                [logits] = logits_of(alone, [Segment([token], position, [0, 1, 2])])
                assert logits[0].tobytes() == np.concatenate(parts)[position].tobytes()


def test_a_key_beyond_float16_fails_its_sequence_and_no_other(
    models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    """An infinite one might only make a position count as nothing: wrong tokens without a word."""
    model, large = copy.deepcopy(models["grouped heads"]), 7
    embedding = model.get_parameter("model.embed_tokens.weight").data
    embedding[:, 0] = 0  # only the large one reads this column
    embedding[large, 0] = embedding.abs().max()
    model.get_parameter("model.layers.0.self_attn.k_proj.weight").data[:, 0] = -1e5
    prompts = {0: (large, 2, 3), 1: (1, 2, 3)}

    def finished(name: str, numbers: list[int]) -> dict[int, list[object]]:
        core = EngineCore(make_runner(model, kv_kind=KV_KINDS[name]), prefill_tokens=8)
        for number in numbers:
            params = SamplingParams(temperature=0.0, seed=0)
            core.submit(number, [SequenceRequest(prompts[number], params, 4, frozenset())])
        found: dict[int, list[object]] = {number: [] for number in numbers}
        while core.has_work:
            for event in core.step():
                if isinstance(event, FailEvent | TokenEvent):
                    found[event.request_id].append(event.message if isinstance(event, FailEvent) else event.token)
        return found

    both = finished("float16", [0, 1])
    assert both[0] == [NO_DISTRIBUTION]
    assert both[1] == finished("float16", [1])[1]
    assert len(both[1]) == 4
    assert len(finished("bfloat16", [0])[0]) == len(finished("float32", [0])[0]) == 4
