from types import SimpleNamespace
from typing import Any

from services.inference.engine import PromptEvent, SequenceRequest, TokenEvent, TokenLogprobs
from services.inference.engine.vllm.outputs import SequenceOutputs
from services.inference.engine.vllm.parameters import sampling_arguments
from shared.lm import SamplingParams


def request(**changes: Any) -> SequenceRequest:
    values = {"prompt_ids": (1, 2, 3), "params": SamplingParams(seed=1), "max_tokens": 4, "stop_ids": frozenset({9})}
    return SequenceRequest(**{**values, **changes})


def logprobs(*entries: tuple[int, float, int]) -> dict[int, Any]:
    """As vLLM has them: the token itself first, then the likeliest by rank."""
    return {token: SimpleNamespace(logprob=value, rank=rank) for token, value, rank in entries}


def output(**values: Any) -> Any:
    return SimpleNamespace(**{"prompt_logprobs": None, "finished": False, "num_cached_tokens": None, **values})


def test_the_likeliest_are_in_order_without_the_token_itself_and_without_padding() -> None:
    outputs = SequenceOutputs(4, 2, request(num_logprobs=3), frozenset(range(10)))
    found = logprobs((7, -5.0, 40), (3, -0.1, 1), (12, -0.2, 2), (5, -0.3, 3))
    completion = SimpleNamespace(token_ids=[7], logprobs=[found], finish_reason=None)
    events = list(outputs.events(output(outputs=[completion])))
    assert events == [PromptEvent(4, 2, 0), TokenEvent(4, 2, 7, TokenLogprobs(-5.0, ((3, -0.1), (5, -0.3))))]


def test_a_prompt_alone_ends_with_its_scores() -> None:
    outputs = SequenceOutputs(1, 0, request(max_tokens=0, num_prompt_logprobs=1))
    prompt = [None, logprobs((2, -3.0, 8), (1, -0.5, 1)), logprobs((3, -0.2, 1))]
    completion = SimpleNamespace(token_ids=[7], logprobs=None, finish_reason="length")
    (event,) = outputs.events(output(outputs=[completion], prompt_logprobs=prompt, finished=True, num_cached_tokens=2))
    scores = (TokenLogprobs(-3.0, ((1, -0.5),)), TokenLogprobs(-0.2, ((3, -0.2),)))
    assert event == PromptEvent(1, 0, 2, scores, "length")


def test_parameters_that_vllm_names_otherwise() -> None:
    params = SamplingParams(temperature=0, top_p=0, top_k=-1, logit_bias=((5, 2.0),), seed=3)
    arguments = sampling_arguments(request(params=params, max_tokens=0, num_prompt_logprobs=0), [1, 2])
    assert arguments["temperature"] == 0
    assert 0 < arguments["top_p"] < 1e-6
    assert arguments["top_k"] == 0
    assert arguments["logit_bias"] == {5: 2.0}
    assert arguments["allowed_token_ids"] == [1, 2]
    assert arguments["max_tokens"] == 1
    assert arguments["ignore_eos"], "the service says what ends a sequence"
    assert arguments["stop_token_ids"] == [9]
