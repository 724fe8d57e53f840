"""Load a model folder for serving: the tokenizer and the configuration here, the weights in a worker process."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from services.inference.engine import EngineClient, EngineConfig, LoadError, ModelProcess, Ready, model_identity
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, ModelDescription, read_description


@dataclass(frozen=True)
class ServedModel:
    """A loaded model as requests use it; the engine has its weights.

    Attributes:
        worker_pid: Returns the id of the current worker process, or None.
    """

    tokenizer: Tokenizer
    generation: GenerationDefaults
    config: ModelConfig
    engine: EngineClient
    context_length: int
    device: str
    dtype: str
    worker_pid: Callable[[], int | None] = lambda: None


class _Launcher:
    """Starts the worker process, and its replacements."""

    def __init__(self, config: EngineConfig, load_timeout: float | None) -> None:
        self._config = config
        self._load_timeout = load_timeout
        self._worker: ModelProcess | None = None

    def pin(self, ready: Ready) -> None:
        """Start replacements on the same device only: after a GPU failure they do not fall back to the CPU."""
        self._config = replace(self._config, device=ready.device, dtype=ready.dtype)

    def __call__(self) -> ModelProcess:
        self._worker = ModelProcess(self._config, load_timeout=self._load_timeout)
        return self._worker

    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker is not None else None


def load_served_model(settings: InferenceSettings) -> ServedModel:
    """Load the tokenizer and the configuration while a worker process loads the weights; blocks.

    Raises:
        ModelFolderError: A file is missing or invalid.
        LoadError: The worker process failed, or the folder changed meanwhile.
    """
    config = EngineConfig(
        model_dir=settings.model_dir,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        context_length=settings.context_length,
        max_batch=settings.max_batch,
        prefill_tokens=settings.prefill_tokens,
        kv_cache_bytes=settings.kv_cache_bytes,
    )
    launch = _Launcher(config, settings.load_timeout or None)
    try:
        process = launch()
    except OSError as error:
        raise LoadError(f"cannot start the worker process: {error.strerror}", reported=True) from error
    try:
        folder = read_description(settings.model_dir)
        folder.tokenizer.warm_up()
        ready = process.wait_ready()
        launch.pin(ready)
        _check_same(folder, ready, settings.model_dir)
    except Exception:
        process.close()
        raise
    return ServedModel(
        tokenizer=folder.tokenizer,
        generation=folder.generation,
        config=folder.config,
        engine=EngineClient(
            process,
            ready,
            launch,
            max_queue=settings.max_queue,
            queue_timeout=settings.queue_timeout or None,
            request_timeout=settings.request_timeout or None,
            step_timeout=settings.step_timeout or None,
        ),
        context_length=ready.context_length,
        device=ready.device,
        dtype=ready.dtype,
        worker_pid=launch.worker_pid,
    )


def _check_same(folder: ModelDescription, ready: Ready, model_dir: Path) -> None:
    if ready.identity != model_identity(folder.tokenizer.fingerprint, folder.config):
        raise LoadError(f"{model_dir} was replaced while it was being loaded; restart the service", reported=True)
