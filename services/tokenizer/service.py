"""What both routes need: the loaded tokenizer, the limits, and threads for long texts."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from fastapi import Request

from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer
from shared.http import ApiError, Lifecycle, ThreadPool, cancel_on_disconnect, error_responses

P = ParamSpec("P")
R = TypeVar("R")

ERROR_RESPONSES = error_responses(400, 413, 415, 422, 503)
# Characters of text, or token ids, that are processed on the event loop. A text of this size takes a tenth of a
# millisecond; the worst one, a single repeated letter, 2 ms.
_INLINE_SIZE = 1 << 12


class TokenizerService:
    """Runs functions of the loaded tokenizer for requests."""

    def __init__(self, settings: TokenizerSettings, lifecycle: Lifecycle[Tokenizer]) -> None:
        self.settings = settings
        self._lifecycle = lifecycle
        self._threads = ThreadPool(settings.cpu_threads)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            ApiError: 503 while it is not ready.
        """
        return self._lifecycle.resource

    async def run(
        self,
        size: int,
        request: Request,
        function: Callable[Concatenate[Tokenizer, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tokenizer, ...)`: at once for a small `size`, else in a thread until the client disconnects.

        Args:
            size: Characters or token ids to process.
            request: The request, whose body has been read.
            function: What to call.
            args: Its further arguments.
            kwargs: Its named arguments.
        """
        tokenizer = self.tokenizer
        if size <= _INLINE_SIZE and tokenizer.is_linear:
            return function(tokenizer, *args, **kwargs)
        return await cancel_on_disconnect(request, self._threads.run(function, tokenizer, *args, **kwargs))


def check_batch_size(field: str, items: int, limit: int) -> None:
    """Refuse a batch with more items than `OWNLM_MAX_BATCH_ITEMS`."""
    if items > limit:
        raise ApiError(400, f"{field}: {items} items exceed the limit of {limit} (OWNLM_MAX_BATCH_ITEMS)", param=field)
