"""The torch runner on CPU, without graphs, against `shared.lm.Transformer` and the reference of sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inference.engine.runner.protocol import Segment
from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.types import BLOCK_SIZE, SampledToken, SequenceRequest
from shared.lm import (
    NO_TOKEN,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    SamplingParams,
    Transformer,
    generate,
    top_logprobs,
)
from shared.lm.attention import attend

NUM_BLOCKS = 120
MAX_LENGTH = 600  # three chunks of attention
SIZE: Any = {"vocab_size": 97, "context_length": MAX_LENGTH, "d_model": 24, "num_layers": 2, "d_ff": 40}
CONFIGS = {
    "grouped, tied": ModelConfig(**SIZE, num_heads=6, num_kv_heads=2, head_dim=4),
    "query/key norm, wide heads, scaled RoPE, untied": ModelConfig(
        **SIZE, num_heads=4, num_kv_heads=4, head_dim=8, qk_norm=True, tie_embeddings=False,
        rope=RopeConfig(theta=5000.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 64)),
    ),
}  # fmt: skip


def new_model(name: str) -> Transformer:
    torch.manual_seed(3)
    model = Transformer(CONFIGS[name]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 1.0, 0.3)
    return model


@pytest.fixture(scope="module", params=CONFIGS, ids=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> Transformer:
    return new_model(request.param)


def new_runner(model: Transformer, *, num_slots: int = 5, kv_dtype: torch.dtype | None = None) -> TorchRunner:
    return TorchRunner(
        model,
        num_blocks=NUM_BLOCKS,
        num_slots=num_slots,
        max_length=MAX_LENGTH,
        max_step_tokens=MAX_LENGTH,
        kv_dtype=kv_dtype,
    )


def a_request(prompt: Sequence[int], *, num_logprobs: int | None = None, **values: float) -> SequenceRequest:
    return SequenceRequest(tuple(prompt), SamplingParams(**values), 100, frozenset(), num_logprobs)  # type: ignore[arg-type]


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 97, count).tolist()


class Sequences:
    """Rows that run on a runner, each with blocks of its own, scattered over the cache."""

    def __init__(self, runner: TorchRunner, seed: int = 0, num_blocks: int = NUM_BLOCKS) -> None:
        self._runner = runner
        self._free = np.random.default_rng(seed).permutation(num_blocks).tolist()
        self.tokens: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}
        self._targets: dict[int, int] = {}

    def open(self, row: int, request: SequenceRequest) -> None:
        self._runner.open_slot(row, request)
        self.tokens[row], self.done[row], self._blocks[row] = list(request.prompt_ids), 0, []
        self._targets[row] = len(request.prompt_ids)

    def segment(self, row: int, count: int | None = None) -> Segment:
        """The next tokens of a row, all that there are if nothing is said."""
        start = self.done[row]
        tokens = self.tokens[row][start:][:count]
        self.done[row] += len(tokens)
        while len(self._blocks[row]) * BLOCK_SIZE < self.done[row]:
            self._blocks[row].append(self._free.pop())
        draws = (row,) if self.done[row] == len(self.tokens[row]) else ()
        return Segment(tokens, start, list(self._blocks[row]), draws)

    def run(self, segments: list[Segment]) -> list[SampledToken]:
        draws = self._runner.run(segments).sampled_tokens
        for draw in draws:
            self.tokens[draw.slot].append(draw.token)
        return draws

    def outputs(self, row: int) -> list[int]:
        return self.tokens[row][self._targets[row] :]


def test_tokens_equal_those_of_one_sequence_at_a_time(model):
    """Prompts of all lengths in one batch, greedy and sampled, beyond one and two chunks of attention."""
    sequences = Sequences(new_runner(model))
    requests = {
        0: a_request(some_tokens(1), temperature=0.0),
        1: a_request(some_tokens(16, 1), temperature=0.9, top_p=0.9, seed=4),
        2: a_request(some_tokens(254, 2), temperature=1.2, top_k=30, seed=5, repetition_penalty=1.3),
        4: a_request(some_tokens(200, 3), temperature=0.0, frequency_penalty=0.5),
    }
    for row, request in requests.items():
        sequences.open(row, request)
    for _ in range(12):
        sequences.run([sequences.segment(row) for row in requests])
    for row, request in requests.items():
        expected = list(generate(model, request.prompt_ids, request.params, max_tokens=12))
        assert sequences.outputs(row) == expected


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_row_is_the_same_to_the_last_bit_in_any_company(model, data):
    """Alone or beside others, in any chunks, blocks and places: the log-probabilities are equal, not just close."""
    prompt = some_tokens(data.draw(st.sampled_from([1, 15, 40, 300])), 9)
    request = a_request(prompt, temperature=1.1, seed=8, num_logprobs=4)
    alone = Sequences(new_runner(model))
    alone.open(0, request)
    expected = [alone.run([alone.segment(0)])[0].logprobs for _ in range(4)]

    row = data.draw(st.integers(0, 4))
    together = Sequences(new_runner(model), seed=data.draw(st.integers(0, 9)))
    together.open(row, request)
    for other in set(range(5)) - {row}:
        length = data.draw(st.sampled_from([1, 33, 100]))
        together.open(other, a_request(some_tokens(length, other), temperature=0.5, seed=other))
    actual = []
    while len(actual) < 4:
        rows = data.draw(st.permutations([row, *data.draw(st.sets(st.integers(0, 4)))]))
        segments = [together.segment(other, data.draw(st.sampled_from([7, 16, 90]))) for other in dict.fromkeys(rows)]
        actual += [draw.logprobs for draw in together.run(segments) if draw.slot == row]
    assert actual == expected


def test_a_row_without_numbers_fails_alone_and_leaves_nothing_in_its_blocks():
    """B48: NaN in blocks that another sequence gets afterwards does not reach it."""
    model = new_model("query/key norm, wide heads, scaled RoPE, untied")
    greedy = SamplingParams(temperature=0.0)
    expected = [next(generate(model, prompt, greedy, max_tokens=1)) for prompt in ([5, 6], [5])]
    with torch.no_grad():
        model.model.embed_tokens.weight[96] = torch.nan
    runner = new_runner(model)
    runner.open_slot(0, a_request([96, 1], temperature=0.0))
    runner.open_slot(1, a_request([5, 6], temperature=0.0))
    draws = runner.run([Segment([96, 1], 0, [3], (0,)), Segment([5, 6], 0, [4], (1,))]).sampled_tokens
    assert [draw.token for draw in draws] == [NO_TOKEN, expected[0]]
    runner.open_slot(0, a_request([5], temperature=0.0))
    [draw] = runner.run([Segment([5], 0, [3], (0,))]).sampled_tokens
    assert draw.token == expected[1]


def test_log_probabilities_of_a_prompt_are_those_of_the_model(model):
    prompt = some_tokens(90)
    runner = new_runner(model)
    runner.open_slot(0, a_request(prompt))
    segments = [
        Segment(prompt[:50], 0, list(range(6)), (), prompt[1:51], 3),
        Segment(prompt[50:], 50, list(range(6)), (0,), prompt[51:], 3),
    ]
    scored = [logprobs for segment in segments for logprobs in runner.run([segment]).prompt_logprobs[0]]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]))[0, :-1]
    for actual, (chosen, top) in zip(scored, top_logprobs(logits, prompt[1:], 3), strict=True):
        assert actual.chosen == pytest.approx(chosen, abs=1e-4)
        assert [value for _, value in actual.top] == pytest.approx([value for _, value in top], abs=1e-4)


def test_choices_share_a_prompt_and_a_copied_block(model):
    """Two rows draw from one segment, then go on in blocks of their own."""
    prompt = some_tokens(20, 4)
    requests = [a_request(prompt, temperature=1.5, seed=seed) for seed in (1, 2)]
    runner = new_runner(model)
    for row, request in enumerate(requests):
        runner.open_slot(row, request)
    tokens = [[draw.token] for draw in runner.run([Segment(prompt, 0, [7, 9], (0, 1))]).sampled_tokens]
    runner.copy_block(9, 30)
    for step in range(3):
        steps = [Segment([tokens[row][-1]], 20 + step, [7, block], (row,)) for row, block in ((0, 9), (1, 30))]
        for draw in runner.run(steps).sampled_tokens:
            tokens[draw.slot].append(draw.token)
    assert tokens == [list(generate(model, prompt, request.params, max_tokens=4)) for request in requests]
    assert tokens[0] != tokens[1]


def test_an_evicted_row_goes_on_as_if_nothing_had_been(model):
    request = a_request(some_tokens(30), temperature=1.3, seed=6, presence_penalty=1.0)
    expected = list(generate(model, request.prompt_ids, request.params, max_tokens=8))
    runner = new_runner(model)
    runner.open_slot(2, request, expected[:5])
    [draw] = runner.run([Segment([*request.prompt_ids, *expected[:5]], 0, [1, 2, 3], (2,))]).sampled_tokens
    assert draw.token == expected[5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_nearly_the_same_distribution(dtype):
    model = new_model("grouped, tied")
    prompt = some_tokens(40)
    runner, segment = new_runner(model), Segment(prompt, 0, [0, 1, 2], (), prompt[1:], 0)
    [exact] = runner.run([segment]).prompt_logprobs
    [rounded] = new_runner(model.to(dtype)).run([segment]).prompt_logprobs
    differences = [abs(ours.chosen - theirs.chosen) for ours, theirs in zip(exact, rounded, strict=True)]
    assert 0 < max(differences) < 0.3


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_half_precision_is_attention_over_rounded_keys_and_values(kv_dtype, monkeypatch):
    model, prompt = new_model("grouped, tied"), some_tokens(300)

    def attend_rounded(queries, keys, values, *others):
        return attend(queries, keys.to(kv_dtype).float(), values.to(kv_dtype).float(), *others)

    def logprobs():
        with torch.inference_mode():
            return model(torch.tensor([prompt]))[0].log_softmax(-1)[range(299), prompt[1:]].numpy()

    exact = logprobs()
    monkeypatch.setattr("shared.lm.attention.attend", attend_rounded)
    expected = logprobs()
    runner = new_runner(model, kv_dtype=kv_dtype)
    [found] = runner.run([Segment(prompt, 0, list(range(19)), (), prompt[1:], 0)]).prompt_logprobs
    error = np.abs(np.array([one.chosen for one in found]) - expected)
    assert np.median(error) < 0.25 * np.median(np.abs(exact - expected))
    assert error.max() < np.abs(exact - expected).max()


def test_a_key_beyond_float16_spoils_its_sequence_and_no_other():
    """As on the CPU: an infinite key might make a position count as nothing."""
    model, large = new_model("grouped, tied"), 7
    embedding = model.get_parameter("model.embed_tokens.weight").data
    embedding[:, 0] = 0  # only the large one reads this column
    embedding[large, 0] = 1.0
    model.get_parameter("model.layers.0.self_attn.k_proj.weight").data[:, 0] = -1e6
    tokens = [1, 2, 3]
    for dtype, is_spoiled in ((torch.float16, True), (torch.bfloat16, False)):
        runner = new_runner(model, kv_dtype=dtype)
        for row, prompt in enumerate([[large, *tokens], tokens]):
            runner.open_slot(row, a_request(prompt, temperature=0.0))
        segments = [Segment([large, *tokens], 0, [0], (0,)), Segment(tokens, 0, [1], (1,))]
        draws = runner.run(segments).sampled_tokens
        assert (draws[0].token == NO_TOKEN) is is_spoiled
        assert draws[1].token != NO_TOKEN


@pytest.mark.case("D57")
def test_tf32_is_off_for_products_as_torch_has_it() -> None:
    """docs/explanation/determinism.md relies on that default: TF32 gives float32 on a GPU the precision of float16."""
    assert torch.backends.cuda.matmul.allow_tf32 is False
