"""The answer to /generate: whole, or as Server-Sent Events."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import structlog

from services.inference.choice import Delta
from services.inference.engine import EngineError, EngineUnavailableError
from services.inference.generation import Generation
from services.inference.schemas import ChoiceResponse, GenerateResponse
from shared.http import ApiError

_log = structlog.get_logger("ownlm.generate")


class Answer:
    """Gives the parts of one answer their common shape."""

    def __init__(self, generation: Generation, *, model: str, fingerprint: str, logprobs: bool) -> None:
        self._generation = generation
        self._id = f"gen-{uuid.uuid4().hex}"
        self._model = model
        self._fingerprint = fingerprint
        self._logprobs = logprobs

    async def whole(self) -> GenerateResponse:
        """Wait for all choices.

        Raises:
            ApiError: The engine could not finish.
        """
        choices = [Delta() for _ in range(self._generation.plan.num_choices)]
        try:
            async for index, delta in self._generation.deltas():
                choices[index].extend(delta)
        except EngineError as error:
            raise as_api_error(error) from error
        return self._response(list(enumerate(choices)))

    async def frames(self) -> AsyncIterator[dict[str, str]]:
        """Yield events for the SSE library; an error after the start is the last one."""
        try:
            async for index, delta in self._generation.deltas():
                yield _frame(self._response([(index, delta)]).model_dump())
        except EngineError as error:
            yield _frame(as_api_error(error).envelope())
        except Exception:
            _log.exception("stream failed")
            yield _frame(ApiError(500, "internal error; the server's log has the details").envelope())
        else:
            yield {"data": "[DONE]"}

    def _response(self, choices: list[tuple[int, Delta]]) -> GenerateResponse:
        return GenerateResponse(
            id=self._id,
            model=self._model,
            choices=[
                ChoiceResponse(
                    index=index,
                    text=delta.text,
                    tokens=delta.tokens,
                    logprobs=delta.logprobs if self._logprobs else None,
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                )
                for index, delta in choices
            ],
            usage=self._generation.usage if self._generation.finished else None,
            seed=self._generation.plan.seed,
            fingerprint=self._fingerprint,
        )


def as_api_error(error: EngineError) -> ApiError:
    """503 where the server is going down, else 500; the message has the true cause."""
    if isinstance(error, EngineUnavailableError):
        return ApiError(503, str(error), code="engine_unavailable")
    return ApiError(500, str(error), code="generation_failed")


def _frame(content: dict[str, Any]) -> dict[str, str]:
    # ASCII only: many clients split lines at U+2028, U+2029 and U+0085 too, which the SSE standard does not.
    return {"data": json.dumps(content, ensure_ascii=True, separators=(",", ":"))}
