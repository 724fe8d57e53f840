"""Answers that the model writes: its most likely token at each step, for many prompts at once."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.bpe import StreamDecoder
from shared.lm import KVCache, ModelFolder, SamplingParams
from shared.lm.sampling import SampledRow, sample
from shared.lm.sampling_params import NO_TOKEN
from trainer.errors import TrainerError
from trainer.evaluation.windows import Ids, by_length


@dataclass(frozen=True)
class AnswerRules:
    """Where an answer ends.

    Attributes:
        max_tokens: The most tokens of an answer.
        stop: Texts that end it, and are not part of it.
        end_ids: Ids that do the same.
        batch_size: Prompts at once; if None, as many as have `batch_tokens` with their answers.
        batch_tokens: Used if `batch_size` is None.
    """

    max_tokens: int
    stop: Sequence[str]
    end_ids: Collection[int]
    batch_size: int | None
    batch_tokens: int


@dataclass
class _Answer:
    """An answer that is being written.

    Attributes:
        number: The index of its prompt.
        prompt: Its ids.
        inputs: The tokens of the cache that it may take.
        sampled: What sampling must know of the sequence.
        decoder: Of its ids.
        text: Until now.
    """

    number: int
    prompt: Ids
    inputs: int
    sampled: SampledRow
    decoder: StreamDecoder
    text: str = ""


def write_answers(folder: ModelFolder, prompts: Sequence[Ids], rules: AnswerRules) -> Iterator[tuple[int, str]]:
    """Answers in any order, each with the index of its prompt; equal to those of each prompt alone.

    The model's repetition penalty applies, if its generation_config.json has one.

    Args:
        folder: The model.
        prompts: Each with one id at least; with `max_tokens` more it fits into the model's context.
        rules: Where answers end.

    Raises:
        TrainerError: If the model's logits are NaN or infinite.
    """
    params = SamplingParams(temperature=0.0, repetition_penalty=folder.generation.repetition_penalty)
    answers = [
        _Answer(
            number,
            prompt,
            len(prompt) + rules.max_tokens,
            SampledRow(params, frozenset(prompt.tolist())),
            StreamDecoder(folder.tokenizer, continues=folder.tokenizer.have_text(prompt.tolist())),
        )
        for number, prompt in enumerate(prompts)
    ]
    for batch in by_length(answers, batch_size=rules.batch_size, batch_tokens=rules.batch_tokens):
        yield from _write(folder, batch, rules)


@torch.no_grad()
def _write(folder: ModelFolder, batch: Sequence[_Answer], rules: AnswerRules) -> Iterator[tuple[int, str]]:
    model, weight = folder.model, folder.model.model.embed_tokens.weight
    cache = KVCache(folder.config, len(batch), batch[0].inputs, weight.device, weight.dtype)
    lengths = [len(answer.prompt) for answer in batch]
    prompts = np.zeros((len(batch), lengths[0]), np.int64)
    for row, answer in zip(prompts, batch, strict=True):
        row[: len(answer.prompt)] = answer.prompt
    hidden = model.hidden(torch.from_numpy(prompts).to(weight.device), cache)
    hidden = hidden[range(len(batch)), [length - 1 for length in lengths]]
    slots = list(range(len(batch)))
    for _ in range(rules.max_tokens):
        rows = [batch[slot].sampled for slot in slots]
        ids = dict(zip(slots, sample(model.logits(hidden), rows, valid_tokens=folder.valid_tokens), strict=True))
        for slot, token in ids.items():
            if _is_finished(folder, batch[slot], token, rules):
                yield batch[slot].number, _up_to_stop(batch[slot].text, rules.stop)
                slots.remove(slot)
        if not slots:
            return
        positions = [lengths[slot] for slot in slots]
        tokens = torch.tensor([[ids[slot]] for slot in slots], device=weight.device)
        hidden = model.hidden(tokens, cache, torch.tensor(slots), torch.tensor(positions))[:, 0]
        for slot in slots:
            lengths[slot] += 1
    for slot in slots:
        yield batch[slot].number, _up_to_stop(batch[slot].text + batch[slot].decoder.finish(), rules.stop)


def _is_finished(folder: ModelFolder, answer: _Answer, token: int, rules: AnswerRules) -> bool:
    """Take a token; whether the answer ends with it."""
    if token == NO_TOKEN:
        raise TrainerError(
            f"the logits of {folder.path} are NaN or infinite; its training has diverged, or it is damaged"
        )
    if token in rules.end_ids:
        answer.text += answer.decoder.finish()
        return True
    answer.sampled.append(token)
    answer.text += answer.decoder.feed(token)
    return any(each in answer.text for each in rules.stop)


def _up_to_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]
