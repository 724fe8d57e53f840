"""What the routes share: the loaded model, and the way of a request into its engine."""

from collections.abc import Mapping

from starlette.types import Scope

from services.inference.engine import EngineError
from services.inference.generation.errors import to_api_error
from services.inference.generation.loading import ServedModel
from services.inference.generation.prepare import check_num_sequences, prepare_request
from services.inference.generation.request import GenerationRequest
from services.inference.generation.stream import Generation
from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from shared.http import ApiError, Lifecycle, ThreadPool, current_request

# Characters or tokens of prompts that are encoded on the event loop: under a millisecond, less than a thread costs
# under load.
_INLINE_SIZE = 1 << 12
_GENERATING_PATHS = frozenset({"/generate", "/v1/completions"})


class InferenceService:
    """Submits requests to the engine of the loaded model."""

    def __init__(
        self, settings: InferenceSettings, lifecycle: Lifecycle[ServedModel], metrics: InferenceMetrics
    ) -> None:
        self.settings = settings
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._threads = ThreadPool(settings.cpu_threads)

    @property
    def model(self) -> ServedModel:
        """The model.

        Raises:
            ApiError: 503 while it is not ready.
        """
        return self._lifecycle.resource

    def refusal(self, scope: Scope, _headers: Mapping[bytes, bytes]) -> ApiError | None:
        """The error that any request to this route gets now, known before its body arrives; None if there is none."""
        if scope["method"] != "POST" or scope["path"] not in _GENERATING_PATHS:
            return None
        try:
            self._check_room(1)
        except ApiError as error:
            return error
        return None

    async def start(self, request: GenerationRequest, default_max_tokens: int) -> Generation:
        """Prepare a request and submit it to the engine. The caller must `close` the generation.

        Raises:
            ApiError: 400 for an invalid request, 429 or 503 where the engine cannot take it now.
        """
        num_sequences = check_num_sequences(request, self.settings)
        if sum(map(len, request.prompts)) <= _INLINE_SIZE and self.model.tokenizer.is_linear:
            prepared = prepare_request(request, self.model, default_max_tokens)
        else:
            self._check_room(num_sequences)  # `submit` checks again: other requests come in meanwhile
            prepared = await self._threads.run(prepare_request, request, self.model, default_max_tokens)
        return Generation(prepared, self.model, self._metrics, log_prompts=self.settings.log_prompts)

    def _check_room(self, num_sequences: int) -> None:
        try:
            self.model.engine.check_room(num_sequences)
        except EngineError as error:
            raise to_api_error(error) from error


def response_id(prefix: str) -> str:
    """The id of a response: the request's own, so that response, log line and header are found together."""
    context = current_request.get()
    return f"{prefix}-{context.id if context is not None else ''}"
