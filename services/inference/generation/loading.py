"""Load a model folder for serving: what requests need of it here, and the weights in a process of their own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from services.inference.engine import EngineClient, EngineConfig, LoadError, ModelProcess, Ready, model_identity
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, ModelDescription, read_description


@dataclass(frozen=True)
class ServedModel:
    """What requests need of a loaded model; the engine alone touches its weights.

    `process_id` is that of the process which runs the model now, where it has one of its own.
    """

    tokenizer: Tokenizer
    generation: GenerationDefaults
    config: ModelConfig
    engine: EngineClient
    context_length: int
    device: str
    dtype: str
    process_id: Callable[[], int | None] = lambda: None


class _Launcher:
    """Starts the model's process, and others in its place."""

    def __init__(self, config: EngineConfig, load_timeout: float | None) -> None:
        self._config = config
        self._load_timeout = load_timeout
        self._newest: ModelProcess | None = None

    def keep_to(self, ready: Ready) -> None:
        """Start no other kind of process: one whose GPU is gone does not become one on the CPU."""
        self._config = replace(self._config, device=ready.device, dtype=ready.dtype)

    def __call__(self) -> ModelProcess:
        self._newest = ModelProcess(self._config, load_timeout=self._load_timeout)
        return self._newest

    def process_id(self) -> int | None:
        return self._newest.pid if self._newest is not None else None


def load_served_model(settings: InferenceSettings) -> ServedModel:
    """Load everything, the weights in a process of their own meanwhile; blocks.

    Raises:
        ModelFolderError: Names the file and the fault.
        LoadError: What the model's process could not do, or the folder changed meanwhile.
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
        raise LoadError(f"the model's process cannot be started: {error.strerror}", reported=True) from error
    try:
        folder = read_description(settings.model_dir)
        folder.tokenizer.warm_up()
        ready = process.wait_ready()
        launch.keep_to(ready)
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
        process_id=launch.process_id,
    )


def _check_same(folder: ModelDescription, ready: Ready, model_dir: Path) -> None:
    if ready.identity != model_identity(folder.tokenizer.fingerprint, folder.config):
        raise LoadError(f"{model_dir} was replaced while it was being loaded; start again", reported=True)
