"""What sequences get from a runner: alone and in company, in float32 and bfloat16, and beside the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import BLOCK_SIZE, PromptEvent, SequenceRequest, TokenEvent
from shared.lm import ModelConfig, SamplingParams, Transformer, generate

_PROMPTS = (1, 7, 16, 33, 64, 90, 130)
_BEGINNING = 40  # tokens put before each prompt that is longer, so that blocks of one are cache hits of another


@dataclass
class Seen:
    """What a run of sequences gave.

    Attributes:
        answers: Of each sequence, its tokens with the log-probabilities of the most likely ids, to the last bit.
        preemptions: How often a sequence gave its blocks back.
        cached: Prompt tokens that were in the prefix cache.
    """

    answers: dict[int, list[Any]] = field(default_factory=dict)
    preemptions: int = 0
    cached: int = 0


def new_model(config: ModelConfig, device: str, dtype: torch.dtype) -> Transformer:
    """A model with weights that every device has alike."""
    torch.manual_seed(0)
    return Transformer(config).to(device, dtype).eval()


def new_runner(model: Transformer, *, rows: int, num_blocks: int) -> TorchRunner:
    """A runner of so many sequences."""
    length = model.config.context_length
    return TorchRunner(model, num_blocks=num_blocks, num_slots=rows, max_length=length, max_step_tokens=rows + 512)


def requests(config: ModelConfig, count: int, new_tokens: int) -> list[SequenceRequest]:
    """Prompts of several lengths, of which many begin alike; greedy, sampled, filtered and penalized in turn."""
    random = np.random.default_rng(1)
    beginning = random.integers(0, config.vocab_size, _BEGINNING).tolist()
    params: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 1.1, "top_p": 0.9, "top_k": 50},
        {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    )
    made = []
    for index in range(count):
        length = _PROMPTS[index % len(_PROMPTS)]
        prompt = random.integers(0, config.vocab_size, length).tolist()
        if length > _BEGINNING:
            prompt = beginning + prompt
        sampling = SamplingParams(**params[index % len(params)], seed=index)
        made.append(SequenceRequest(tuple(prompt), sampling, new_tokens, frozenset(), num_logprobs=2))
    return made


def run(runner: TorchRunner, sequences: Sequence[SequenceRequest], *, prefill_tokens: int, again: int = 0) -> Seen:
    """Run sequences together; the first `again` of them come a second time, when the first ones have ended."""
    core, seen = EngineCore(runner, prefill_tokens=prefill_tokens), Seen()
    for wave in (list(enumerate(sequences)), [(len(sequences) + i, one) for i, one in enumerate(sequences[:again])]):
        for number, sequence in wave:
            core.submit(number, [sequence])
        while core.has_work:
            for event in core.step():
                if isinstance(event, TokenEvent):
                    seen.answers.setdefault(event.request_id, []).append((event.token, event.logprobs))
                elif isinstance(event, PromptEvent):
                    seen.cached += event.num_cached_tokens
    seen.preemptions = core.stats().preemptions
    return seen


def isolation(model: Transformer, *, rows: int, new_tokens: int) -> tuple[bool, str]:
    """Whether each sequence gets alone what it gets beside others, in parts, from the prefix cache, and preempted."""
    sequences = requests(model.config, rows + rows // 2, new_tokens)
    needed = [one.num_blocks for one in sequences]
    runner = new_runner(model, rows=rows, num_blocks=max(*needed, sum(needed[:rows]) // 2))
    alone = [run(runner, [one], prefill_tokens=512).answers[0] for one in sequences]
    together = run(runner, sequences, prefill_tokens=3 * BLOCK_SIZE, again=rows // 2)
    expected = alone + alone[: rows // 2]
    different = [number for number, answer in enumerate(expected) if together.answers[number] != answer]
    what = f"{len(expected)} sequences, {together.preemptions} preemptions, {together.cached} tokens from the cache"
    is_hard_enough = together.preemptions > 0 and together.cached > 0
    return not different and is_hard_enough, f"{what}: {len(different)} differ"


def agreement(config: ModelConfig, device: str, dtype: torch.dtype, *, new_tokens: int) -> tuple[float, str]:
    """The share of greedy tokens that are those of the CPU in float32, counted up to the first other one."""
    prompts = [one.prompt_ids for one in requests(config, 8, new_tokens)]
    greedy = SamplingParams(temperature=0.0)
    runner = new_runner(new_model(config, device, dtype), rows=8, num_blocks=8 * config.context_length // BLOCK_SIZE)
    sequences = [SequenceRequest(prompt, greedy, new_tokens, frozenset()) for prompt in prompts]
    found = run(runner, sequences, prefill_tokens=512).answers
    reference = new_model(config, "cpu", dtype).float()
    equal = 0
    for number, prompt in enumerate(prompts):
        expected = list(generate(reference, prompt, greedy, max_tokens=new_tokens))
        pairs = zip(expected, [token for token, _ in found[number]], strict=True)
        equal += next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), new_tokens)
    share = equal / (len(prompts) * new_tokens)
    return share, f"{share:.1%} of {len(prompts) * new_tokens} tokens"
