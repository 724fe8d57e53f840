"""The log-likelihood of continuations, with each context read once.

A row of the batch has a context and, behind it, as many of its continuations as there is room for. Each attends to the
context and to itself, at the positions that it would have without the others: its scores are those that it has alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.lm import Transformer
from trainer.compute.device import Device
from trainer.evaluation.scoring import Floats, logits_of
from trainer.evaluation.tasks.requests import Request
from trainer.evaluation.windows import Ids, by_length

Booleans = npt.NDArray[np.bool_]

# Of a row: attention's work grows with its square, and one mask holds as many bytes.
_LONGEST_ROW = 1024


class Scores(NamedTuple):
    """What a model makes of the continuations of a request.

    Attributes:
        log_likelihoods: float64 [continuations], in nats; NaN or infinite where the model's logits are.
        greedy: bool [continuations], whether each of its ids is the model's most likely one.
    """

    log_likelihoods: Floats
    greedy: Booleans

    def of(self, indices: Sequence[int]) -> "Scores":
        """Those of some continuations, which may repeat."""
        return Scores(self.log_likelihoods[indices], self.greedy[indices])


@dataclass(frozen=True)
class Row:
    """Inputs and targets, of one context.

    Attributes:
        tokens: [T], the context, then each continuation without its last id.
        branches: [T], 0 for the context, else the number of the continuation in this row.
        positions: [T], of each token after the beginning of its text.
        sources: [N], for each target the index of the token that predicts it.
        targets: [N], all ids of the continuations.
        owners: [N], for each target the index of its continuation among those of all requests.
    """

    tokens: Ids
    branches: Ids
    positions: Ids
    sources: Ids
    targets: Ids
    owners: Ids

    @property
    def inputs(self) -> int:
        """How many ids the model reads."""
        return len(self.tokens)


def score_requests(
    model: Transformer, requests: Sequence[Request], *, batch_size: int | None, batch_tokens: int, device: Device
) -> Iterator[tuple[int, list[Scores]]]:
    """Score requests, those of similar length together.

    Args:
        model: In evaluation mode.
        requests: One or more.
        batch_size: Rows of a batch; if None, as many as have `batch_tokens` inputs together.
        batch_tokens: Used if `batch_size` is None.
        device: Where the model is.

    Yields:
        After each batch its inputs, and an empty list; at the end 0, and the scores of all requests.
    """
    ends = np.cumsum([len(request.continuations) for request in requests])
    log_likelihoods, greedy = np.zeros(ends[-1]), np.ones(ends[-1], np.bool_)
    rows = [
        row
        for request, end in zip(requests, ends.tolist(), strict=True)
        for row in rows_of(request, end - len(request.continuations), model.config.context_length)
    ]
    for batch in by_length(rows, batch_size=batch_size, batch_tokens=batch_tokens):
        nats, is_likeliest = _score(model, batch, device)
        owners = np.concatenate([row.owners for row in batch])
        np.subtract.at(log_likelihoods, owners, nats)
        np.logical_and.at(greedy, owners, is_likeliest)
        yield sum(len(row.tokens) for row in batch), []
    splits = ends[:-1].tolist()
    yield 0, [Scores(*each) for each in zip(np.split(log_likelihoods, splits), np.split(greedy, splits), strict=True)]


def rows_of(request: Request, first_owner: int, context_length: int) -> Iterator[Row]:
    """The rows of a request; a context that is too long for a continuation is cut at its beginning, for that one.

    Args:
        request: The request.
        first_owner: The index of its first continuation among those of all requests.
        context_length: Of the model.
    """
    kept: dict[int, list[tuple[int, Ids]]] = {}
    for owner, ids in enumerate(request.continuations, first_owner):
        room = context_length + 1 - len(ids)  # the last id is no input
        kept.setdefault(min(room, len(request.context)), []).append((owner, ids))
    for length, continuations in kept.items():
        context = request.context[len(request.context) - length :]
        some: list[tuple[int, Ids]] = []
        tokens = length
        for owner, ids in continuations:
            if some and tokens + len(ids) - 1 > _LONGEST_ROW:
                yield _row(context, some)
                some, tokens = [], length
            some.append((owner, ids))
            tokens += len(ids) - 1
        yield _row(context, some)


def _row(context: Ids, continuations: Sequence[tuple[int, Ids]]) -> Row:
    end = len(context)
    steps = [np.arange(len(ids) - 1) for _, ids in continuations]
    begins = end + np.cumsum([0, *map(len, steps)])
    sources = [
        part
        for begin, step in zip(begins.tolist(), steps, strict=False)
        for part in (np.array([end - 1]), begin + step)
    ]
    return Row(
        tokens=np.concatenate([context, *(ids[:-1] for _, ids in continuations)]),
        branches=np.repeat(np.arange(len(steps) + 1), [end, *map(len, steps)]),
        positions=np.concatenate([np.arange(end), *(end + step for step in steps)]),
        sources=np.concatenate(sources),
        targets=np.concatenate([ids for _, ids in continuations]),
        owners=np.repeat([owner for owner, _ in continuations], [len(ids) for _, ids in continuations]),
    )


@torch.no_grad()
def _score(model: Transformer, rows: Sequence[Row], device: Device) -> tuple[Floats, Booleans]:
    """Negative log-likelihoods of the targets of rows, and whether each is the most likely id."""
    to = device.torch_device
    tokens, branches, positions = (
        _padded([getattr(row, name) for row in rows]).to(to) for name in ("tokens", "branches", "positions")
    )
    indices = [number * tokens.shape[1] + row.sources for number, row in enumerate(rows)]
    sources = torch.from_numpy(np.concatenate(indices)).to(to)
    targets = torch.from_numpy(np.concatenate([row.targets for row in rows]).astype(np.int64)).to(to)
    with device.autocast():
        is_shared = bool(branches.max() > 1)  # else causal attention is the same, and faster
        hidden = model.hidden_of_branches(tokens, branches, positions) if is_shared else model.hidden(tokens)
        parts = [
            (torch.nn.functional.cross_entropy(logits, of, reduction="none"), logits.argmax(-1) == of)
            for logits, of in logits_of(hidden.flatten(0, 1)[sources], model, targets)
        ]
    nats, greedy = (torch.cat(part) for part in zip(*parts, strict=True))
    return nats.double().cpu().numpy(), greedy.cpu().numpy()


def _padded(arrays: Sequence[Ids]) -> Tensor:
    """int64 [arrays, longest], zeros behind shorter ones, which nothing that is scored attends to."""
    padded = np.zeros((len(arrays), max(map(len, arrays))), np.int64)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded)
