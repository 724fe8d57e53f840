"""What the routes that generate have in common: the model that is ready, and requests on their way into its engine."""

from typing import Any

from services.inference.api.fields import ContinuationRequest
from services.inference.engine import EngineError
from services.inference.generation.failures import as_api_error
from services.inference.generation.loading import ServedModel
from services.inference.generation.prepare import count_rows, make_plan
from services.inference.generation.stream import Generation
from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from shared.http import ApiError, Lifecycle, ThreadPool, current_request, error_responses

# Characters or tokens of prompts that are encoded at once: under a millisecond, less than a thread costs under load.
_INLINE_SIZE = 1 << 12
_GENERATING_PATHS = frozenset({"/generate", "/v1/completions"})

# Before OpenAPI 3.2, the schema of a stream is that of each event.
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "JSON of the answer's shape, or [DONE]"}},
}


class Serving:
    """Puts requests into the engine of the model that is being served."""

    def __init__(
        self, settings: InferenceSettings, lifecycle: Lifecycle[ServedModel], metrics: InferenceMetrics
    ) -> None:
        self.settings = settings
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._workers = ThreadPool(settings.cpu_threads)

    @property
    def model(self) -> ServedModel:
        """The model.

        Raises:
            ApiError: 503 where it is not ready.
        """
        return self._lifecycle.resource

    def refusal(self, method: str, path: str) -> ApiError | None:
        """Why nothing can be generated now: a refusal need not wait until its request was read."""
        if method != "POST" or path not in _GENERATING_PATHS:
            return None
        try:
            self.model.engine.check_room(1)
        except EngineError as error:
            return as_api_error(error)
        except ApiError as error:
            return error
        return None

    async def generate(self, request: ContinuationRequest, default_max_tokens: int) -> Generation:
        """Check a request and hand its rows to the engine. Whoever gets it must `close` it in the end.

        Raises:
            ApiError: What cannot be served, or not now.
        """
        self._check_room(request)
        if sum(map(len, request.prompts)) <= _INLINE_SIZE and self.model.tokenizer.is_linear:
            plan = make_plan(request, self.model, self.settings, default_max_tokens)
        else:
            plan = await self._workers.run(make_plan, request, self.model, self.settings, default_max_tokens)
        return Generation(plan, self.model, self._metrics, log_prompts=self.settings.log_prompts)

    def _check_room(self, request: ContinuationRequest) -> None:
        """Refuse before the prompt is encoded what would be refused after it."""
        try:
            self.model.engine.check_room(count_rows(request, self.settings))
        except EngineError as error:
            raise as_api_error(error) from error

    def answer_id(self, prefix: str) -> str:
        """A name for an answer: the request's own id, so that answer, log line and header are found together."""
        record = current_request.get()
        return f"{prefix}-{record.id if record is not None else ''}"


def stream_responses(example: str, *further_errors: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers whole or as a stream."""
    return {
        **error_responses(400, 413, 415, 422, 429, 500, 503, 504, *further_errors),
        200: {
            "description": "The answer; with `stream` as Server-Sent Events of the same shape, each with what is new",
            "content": {"text/event-stream": {"schema": _EVENT, "example": example}},
        },
    }
