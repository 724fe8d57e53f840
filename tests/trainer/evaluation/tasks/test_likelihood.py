"""Rows with shared contexts score each continuation as the model does when it reads it alone."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import ModelFolder, load_model_folder
from tests.trainer.evaluation.tasks.conftest import CONTEXT
from trainer.compute.device import choose_device
from trainer.evaluation.tasks import likelihood
from trainer.evaluation.tasks.items import Item
from trainer.evaluation.tasks.likelihood import Scores, rows_of, score_requests
from trainer.evaluation.tasks.requests import RequestEncoder
from trainer.text.utf8 import CorpusError

WORDS = ["red", "blue", "cat", "dog", "sees", "the", "a", "naïve", "old", "🦊", "runs;", "\n", " ", ""]


@pytest.fixture(scope="module")
def folder(model_folder: Path) -> ModelFolder:
    return load_model_folder(model_folder)


def items() -> list[Item]:
    draw = random.Random(3)

    def text(longest: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(0, longest)))

    made = [Item("here", text(30), tuple(text(8) for _ in range(draw.randint(1, 6)))) for _ in range(40)]
    same = Item("here", "the cat", ("sees", "sees", "", "the old dog sees"))
    return [*made, same, Item("here", "", ("red", "the")), Item("here", " \n", ("red", ""))]


def score(folder: ModelFolder, some: Sequence[Item], batch_size: int | None, batch_tokens: int) -> list[Scores]:
    requests = RequestEncoder(folder.tokenizer, CONTEXT).encode(some)
    *progress, (_, scores) = score_requests(
        folder.model, requests, batch_size=batch_size, batch_tokens=batch_tokens, device=choose_device("cpu", "float32")
    )
    assert progress
    assert not any(each for _, each in progress)
    return [each.of(request.continuation_of) for request, each in zip(requests, scores, strict=True)]


def alone(folder: ModelFolder, item: Item, choice: str) -> tuple[float, bool]:
    """A choice as lm-evaluation-harness scores it: `_encode_pair` and `_loglikelihood_tokens` of its model `hf`."""
    tokenizer, context = folder.tokenizer, item.context.rstrip()
    whole = item.context + " " + choice
    if context:
        before = tokenizer.encode(context)
        after = tokenizer.encode(whole)[len(before) :]
    else:
        before, after = [tokenizer.special_tokens["<|endoftext|>"]], tokenizer.encode(whole)
    ids = torch.tensor((before + after)[-(CONTEXT + 1) :])
    with torch.no_grad():
        logits = folder.model(ids[None, :-1])[0].log_softmax(-1)[-len(after) :]
    picked = logits.gather(1, ids[-len(after) :, None])
    return picked.sum().item(), bool((logits.argmax(-1) == ids[-len(after) :]).all())


@pytest.mark.parametrize(("batch_size", "batch_tokens", "longest_row"), [(None, 200, 1024), (1, 0, 45), (100, 0, 60)])
def test_scores_are_those_of_each_choice_alone(
    folder: ModelFolder, batch_size: int | None, batch_tokens: int, longest_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "_LONGEST_ROW", longest_row)
    some = items()
    for item, found in zip(some, score(folder, some, batch_size, batch_tokens), strict=True):
        expected = [alone(folder, item, choice) for choice in item.choices]
        assert found.log_likelihoods.tolist() == pytest.approx([nats for nats, _ in expected], abs=2e-4)
        assert found.greedy.tolist() == [greedy for _, greedy in expected]


def test_equal_choices_have_equal_scores_to_the_last_bit(folder: ModelFolder) -> None:
    [found] = score(folder, [Item("here", "the old", ("cat sees", "dog", "cat sees"))], None, 100)
    assert found.log_likelihoods[0] == found.log_likelihoods[2] != found.log_likelihoods[1]


def test_a_context_is_read_once(tokenizer: Tokenizer) -> None:
    [request] = RequestEncoder(tokenizer, CONTEXT).encode(
        [Item("here", "the old cat", ("sees", "likes the dog", "sees"))]
    )
    [row] = rows_of(request, 7, CONTEXT)
    different = [tokenizer.encode(f"the old cat{text}")[len(request.context) :] for text in (" sees", " likes the dog")]
    assert row.inputs == len(request.context) + sum(len(ids) - 1 for ids in different) == request.tokens
    assert row.targets.tolist() == different[0] + different[1]
    assert np.unique(row.owners).tolist() == [7, 8]


def test_a_choice_beyond_the_context_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        CorpusError, match=rf"file, line 7: the choice .* adds \d\d tokens to its context; expected .*{CONTEXT}"
    ):
        RequestEncoder(tokenizer, CONTEXT).encode([Item("file, line 7", "the", ("zqx " * 20,))])
