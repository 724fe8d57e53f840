"""Steps with draws and log-probabilities, as the engine's core asks for them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from services.inference.engine.runner.protocol import Segment
from services.inference.engine.types import SequenceRequest
from shared.kernels.compiling import Call
from shared.lm import SamplingParams, Transformer
from tests.services.inference.engine.runner.cpu.conftest import (
    CONTEXT_LENGTH,
    MAX_ROWS,
    MAX_STEP_TOKENS,
    NUM_BLOCKS,
    MakeRunner,
    logits_of,
)

GREEDY = SamplingParams(temperature=0.0, seed=0)


def request(tokens: list[int], params: SamplingParams = GREEDY) -> SequenceRequest:
    return SequenceRequest(tuple(tokens), params, 10, frozenset())


@pytest.mark.parametrize("num_threads", [1, 2])
def test_greedy_rows_draw_what_torch_finds_likeliest(
    num_threads: int, models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    model, prompts = models["qwen3"], [[5, 9, 2], [100, 3], [7]]
    runner = make_runner(model, num_threads)
    for row, prompt in enumerate(prompts):
        runner.open_slot(row, request(prompt))
    segments = [Segment(prompt, 0, [row], sample_slots=(row,)) for row, prompt in enumerate(prompts)]
    for _ in range(5):
        result = runner.run(segments)
        assert [draw.slot for draw in result.sampled_tokens] == [0, 1, 2]
        for draw, prompt in zip(result.sampled_tokens, prompts, strict=True):
            with torch.inference_mode():
                assert draw.token == int(model(torch.tensor([prompt]))[0, -1].argmax())
            prompt.append(draw.token)
        segments = [Segment(prompt[-1:], len(prompt) - 1, [row], (row,)) for row, prompt in enumerate(prompts)]


def test_any_number_of_threads_may_run_a_step_and_changes_no_bit(
    models: dict[str, Transformer], make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step with another number, though one is chosen by time when the runner is made."""
    model = models["grouped heads"]
    runner, alone = make_runner(model, 3, thread_counts=[1, 2, 3]), make_runner(model)
    assert runner._step_threads.best(1) in {1, 2, 3}
    call_counts: list[int] = []
    run = runner._thread_pool.run

    def counted(calls: Sequence[Call]) -> None:
        call_counts.append(len(calls))
        run(calls)

    for call in (runner._layers, runner._head):
        monkeypatch.setattr(call, "_run", counted)
    for length, num_threads in ((4, 1), (8, 3), (8, 2), (1, 2), (4, 3)):
        monkeypatch.setattr(runner._step_threads, "choose", lambda _, count=num_threads: count)
        monkeypatch.setattr(runner._step_threads, "best", lambda _, count=num_threads: count)
        segments = [Segment(list(range(1, length + 1)), 0, [0])]
        assert np.array_equal(logits_of(runner, segments), logits_of(alone, segments))
        assert call_counts[0] == num_threads
        call_counts.clear()


def test_rows_that_share_a_prompt_draw_what_they_draw_alone(
    models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    model, prompt = models["grouped heads"], [1, 2, 3, 4]
    runner = make_runner(model)
    for row in range(MAX_ROWS):
        runner.open_slot(row, request(prompt, SamplingParams(temperature=1.5, seed=row)))
    together = runner.run([Segment(prompt, 0, [0], sample_slots=tuple(range(MAX_ROWS)))]).sampled_tokens
    assert len({draw.token for draw in together}) > 1
    for row in range(MAX_ROWS):
        runner.close_slot(row)
        runner.open_slot(row, request(prompt, SamplingParams(temperature=1.5, seed=row)))
        assert runner.run([Segment(prompt, 0, [1], sample_slots=(row,))]).sampled_tokens == [together[row]]


def test_log_probabilities_of_prompts_are_those_of_torch(
    models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    """More tokens than fit into the logits at once, beside a segment that wants none and one that draws."""
    model = models["odd widths"]
    tokens = torch.randint(model.config.vocab_size, (30,), generator=torch.Generator().manual_seed(3)).tolist()
    runner = make_runner(model)
    runner.open_slot(0, request([4, 4]))
    result = runner.run(
        [
            Segment([8, 9], 0, [1]),
            Segment(tokens, 0, [2, 3], targets=tokens[1:], num_logprobs=2),
            Segment([4, 4], 0, [4], sample_slots=(0,)),
        ]
    )
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([tokens]))[0].double(), -1).numpy()
    assert [len(logprobs) for logprobs in result.prompt_logprobs] == [0, 29, 0]
    for place, found in enumerate(result.prompt_logprobs[1]):
        assert math.isclose(found.chosen, expected[place, tokens[place + 1]], abs_tol=1e-4)
        best = np.argsort(-expected[place], kind="stable")[:2]
        assert [token for token, _ in found.top] == best.tolist()
    assert len(result.sampled_tokens) == 1


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment([101], 0, [0]), "token 101 does not exist; valid are 0 to 100"),
        (Segment([5, -1], 0, [0]), "token -1 does not exist"),
        (Segment([5], 0, [NUM_BLOCKS]), f"block {NUM_BLOCKS} does not exist"),
        (Segment([5], 16, [0]), "position 16 is in none of 1 blocks"),
        (Segment([5], CONTEXT_LENGTH, [0] * 7), f"position {CONTEXT_LENGTH}, exceeds the memory of the runner"),
        (Segment([5] * (MAX_STEP_TOKENS + 1), 0, [0] * 5), f"a step of {MAX_STEP_TOKENS + 2} tokens"),
    ],
)
def test_what_compiled_code_would_not_survive_is_refused(
    segment: Segment, message: str, models: dict[str, Transformer], make_runner: MakeRunner
) -> None:
    runner = make_runner(models["odd widths"])
    with pytest.raises(ValueError, match=message):
        runner.run([Segment([1], 0, [1]), segment])
    assert runner.run([]).sampled_tokens == []


def test_no_more_logits_than_rows_are_computed_at_once(models: dict[str, Transformer], make_runner: MakeRunner) -> None:
    runner = make_runner(models["odd widths"])
    runner.forward([Segment([1], 0, [1])])
    with pytest.raises(ValueError, match=f"logits of {MAX_ROWS + 1} tokens"):
        runner.logits([0] * (MAX_ROWS + 1))
