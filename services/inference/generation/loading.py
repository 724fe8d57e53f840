"""Load a model folder for serving: the tokenizer and the configuration here, the weights in a worker process."""

from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from services.inference.description import Origin, read_origin
from services.inference.engine import EngineClient, EngineConfig, LoadError, ModelProcess, Ready, model_identity
from services.inference.generation.chat import Chat, open_chat
from services.inference.settings import InferenceSettings
from services.inference.training_record import TrainingFile, read_training_file
from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, ModelDescription, read_description


@dataclass(frozen=True)
class ServedModel:
    """A loaded model as requests use it; the engine has its weights."""

    tokenizer: Tokenizer
    defaults: GenerationDefaults
    config: ModelConfig
    engine: EngineClient
    context_length: int
    device: str
    dtype: str
    kv_dtype: str = "float32"
    origin: Origin = field(default_factory=Origin)
    training: TrainingFile = field(default_factory=TrainingFile)
    chat: Chat | None = None

    def close(self) -> None:
        """End the processes of the engine and of the chat template."""
        self.engine.close()
        if self.chat is not None:
            self.chat.close()


def load_served_model(settings: InferenceSettings) -> ServedModel:
    """Load the tokenizer and the configuration while a worker process loads the weights; blocks.

    Raises:
        ModelFolderError: A file is missing or invalid.
        ChatTemplateError: The chat template cannot be read.
        LoadError: The worker process failed, or the folder changed meanwhile.
    """
    config = EngineConfig(**{item.name: getattr(settings, item.name) for item in fields(EngineConfig)})
    load_timeout = settings.load_timeout or None
    try:
        process = ModelProcess(config, load_timeout=load_timeout)
    except OSError as error:
        raise LoadError(f"cannot start the worker process: {error.strerror}", reported=True) from error
    try:
        folder = read_description(settings.model_dir)
        origin, training = read_origin(folder), read_training_file(folder.path, folder.tokenizer.fingerprint)
        folder.tokenizer.warm_up()
        ready = process.wait_ready()
        _check_same(folder, ready, settings.model_dir)
        chat = open_chat(folder)
    except Exception:
        process.close()
        raise
    # A replacement runs on the same device: after a GPU failure it does not fall back to the CPU.
    replacement = replace(config, device=ready.device, dtype=ready.dtype, kv_dtype=ready.kv_dtype)
    return ServedModel(
        tokenizer=folder.tokenizer,
        defaults=folder.generation,
        config=folder.config,
        engine=EngineClient(
            process,
            ready,
            partial(ModelProcess, replacement, load_timeout=load_timeout),
            max_queue=settings.max_queue,
            queue_timeout=settings.queue_timeout or None,
            request_timeout=settings.request_timeout or None,
            step_timeout=settings.step_timeout or None,
        ),
        context_length=ready.context_length,
        device=ready.device,
        dtype=ready.dtype,
        kv_dtype=ready.kv_dtype,
        origin=origin,
        training=training,
        chat=chat,
    )


def _check_same(folder: ModelDescription, ready: Ready, model_dir: Path) -> None:
    if ready.identity != model_identity(folder.tokenizer.fingerprint, folder.config):
        raise LoadError(f"{model_dir} was replaced while it was being loaded; restart the service", reported=True)
