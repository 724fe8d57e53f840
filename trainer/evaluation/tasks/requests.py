"""Questions as token ids: a context, and what may follow it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.bpe import Tokenizer
from trainer.evaluation.tasks.items import Item, encode_items
from trainer.evaluation.windows import Ids


@dataclass(frozen=True)
class Request:
    """What is scored of an item.

    Attributes:
        context: Its ids, one at least.
        continuations: The different ones among its choices, one id at least each.
        continuation_of: For each choice, the index of its continuation.
    """

    context: Ids
    continuations: Sequence[Ids]
    continuation_of: Sequence[int]

    @property
    def tokens(self) -> int:
        """The inputs of the model, where the context is read once and all of it."""
        return len(self.context) + sum(len(each) - 1 for each in self.continuations)


class RequestEncoder:
    """Encodes contexts and continuations, parted where lm-evaluation-harness parts them (`TemplateLM._encode_pair`).

    White space at the end of a context belongs to the continuation. The continuation's ids are those of both texts
    together, after as many as the context alone has: also where the two merge across the boundary. Before an empty
    context stands the id that begins a text.

    Args:
        tokenizer: The model's.
        longest: The most ids of a continuation: the model's context length.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self._tokenizer = tokenizer
        self._longest = longest

    def encode(self, items: Sequence[Item]) -> list[Request]:
        """The requests of items with choices.

        Raises:
            CorpusError: If a continuation has no ids or too many, or a context is empty and no id begins a text; names
                the place.
        """
        contexts = [item.context.rstrip() for item in items]
        texts = [
            [context, *(item.context + continuation for continuation in item.continuations)] if context else []
            for item, context in zip(items, contexts, strict=True)
        ]
        ids = encode_items(self._tokenizer, items, texts)
        return [self._request(item, *some) for item, some in zip(items, ids, strict=True)]

    def _request(self, item: Item, context: Ids | None = None, *wholes: Ids) -> Request:
        """A request of a context and it with each continuation, or of an item whose context is empty."""
        if context is None:
            context = self._begin(item)
            texts = [item.context + continuation for continuation in item.continuations]
            continuations: Sequence[Ids] = self._tokenizer.encode_batch_to_numpy(texts)
        else:
            continuations = [whole[len(context) :] for whole in wholes]
        for choice, continuation in zip(item.choices, continuations, strict=True):
            if not 0 < len(continuation) <= self._longest:
                raise item.error(
                    f"the choice {choice[:40]!r} adds {len(continuation):,} tokens to its context; expected from 1 to "
                    f"{self._longest:,}, the context length of the model"
                )
        different = {each.tobytes(): each for each in continuations}  # an equal one has an equal score, to the last bit
        places = {each: place for place, each in enumerate(different)}
        return Request(context, [*different.values()], [places[each.tobytes()] for each in continuations])

    def _begin(self, item: Item) -> Ids:
        tokenizer = self._tokenizer
        begin = tokenizer.end_of_text_id if tokenizer.bos_id is None else tokenizer.bos_id
        if begin is None:
            raise item.error("has no context, and the tokenizer has no begin- or end-of-text token to stand for it")
        return np.array([begin], np.uint32)
