"""Load a model folder for serving: the tokenizer and the configuration here, the weights in an engine process."""

from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from services.inference.description import Origin, read_origin
from services.inference.engine import (
    Engine,
    EngineClient,
    EngineConfig,
    EngineFeatures,
    LoadError,
    ModelProcess,
    Ready,
    model_identity,
)
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
    engine: Engine
    context_length: int
    device: str
    dtype: str
    kv_dtype: str = "float32"
    origin: Origin = field(default_factory=Origin)
    training: TrainingFile = field(default_factory=TrainingFile)
    chat: Chat | None = None
    features: EngineFeatures = field(default_factory=EngineFeatures)

    def close(self) -> None:
        """End the processes of the engine and of the chat template."""
        self.engine.close()
        if self.chat is not None:
            self.chat.close()


def load_served_model(settings: InferenceSettings) -> ServedModel:
    """Load the tokenizer and the configuration here, and let an engine load the weights; blocks.

    Raises:
        ModelFolderError: A file is missing or invalid.
        ChatTemplateError: The chat template cannot be read.
        LoadError: The engine failed, or the folder changed while it was read.
    """
    config = EngineConfig(**{item.name: getattr(settings, item.name) for item in fields(EngineConfig)})
    return _load_with_vllm(settings, config) if settings.engine == "vllm" else _load_with_ours(settings, config)


def _load_with_ours(settings: InferenceSettings, config: EngineConfig) -> ServedModel:
    """Read the folder here while an engine process loads the weights."""
    load_timeout = settings.load_timeout or None
    try:
        process = ModelProcess(config, load_timeout=load_timeout)
    except OSError as error:
        raise LoadError(f"cannot start the engine process: {error.strerror}", reported=True) from error
    try:
        folder = _read_folder(settings)
        ready = process.wait_ready()
        # A replacement runs on the same device: after a GPU failure it does not fall back to the CPU.
        replacement = replace(config, device=ready.device, dtype=ready.dtype, kv_dtype=ready.kv_dtype)
        engine = EngineClient(
            process,
            ready,
            partial(ModelProcess, replacement, load_timeout=load_timeout),
            max_queue=settings.max_queue,
            queue_timeout=settings.queue_timeout or None,
            request_timeout=settings.request_timeout or None,
            step_timeout=settings.step_timeout or None,
        )
        features = EngineFeatures(version=version("ownlm"), bitwise_isolation=ready.device == "cpu")
        return _served(settings, folder, engine, ready, features)
    except Exception:
        process.close()
        raise


def _load_with_vllm(settings: InferenceSettings, config: EngineConfig) -> ServedModel:
    from services.inference.engine.vllm.engine import VllmEngine
    from services.inference.engine.vllm.loading import installed_version
    from services.inference.engine.vllm.parameters import DIFFERENCES, REFUSED
    from services.inference.engine.vllm.process import VllmProcess
    from services.inference.engine.vllm.stats import VllmStats

    features = EngineFeatures("vllm", installed_version(), refused=REFUSED, differences=DIFFERENCES)
    folder = _read_folder(settings)
    stats = VllmStats()
    launch = partial(
        VllmProcess,
        config,
        folder.identity,
        settings.served_name,
        settings.vllm_args,
        stats,
        load_timeout=settings.load_timeout or None,
    )
    process = launch()
    try:
        ready = process.wait_ready()
        engine = VllmEngine(
            process,
            ready,
            launch,
            stats,
            max_sequences=settings.max_batch + settings.max_queue,
            queue_timeout=settings.queue_timeout or None,
            request_timeout=settings.request_timeout or None,
            step_timeout=settings.step_timeout or None,
        )
        return _served(settings, folder, engine, ready, features)
    except Exception:
        process.close()
        raise


class _Folder(NamedTuple):
    """What is read of the folder while an engine loads the weights."""

    description: ModelDescription
    origin: Origin
    training: TrainingFile

    @property
    def identity(self) -> str:
        return model_identity(self.description.tokenizer.fingerprint, self.description.config)


def _read_folder(settings: InferenceSettings) -> _Folder:
    description = read_description(settings.model_dir)
    description.tokenizer.warm_up()
    training = read_training_file(description.path, description.tokenizer.fingerprint)
    return _Folder(description, read_origin(description), training)


def _served(
    settings: InferenceSettings, folder: _Folder, engine: Engine, ready: Ready, features: EngineFeatures
) -> ServedModel:
    if ready.identity != folder.identity:
        raise LoadError(
            f"{settings.model_dir} was replaced while it was being loaded; restart the service", reported=True
        )
    description, origin, training = folder
    return ServedModel(
        tokenizer=description.tokenizer,
        defaults=description.generation,
        config=description.config,
        engine=engine,
        context_length=ready.context_length,
        device=ready.device,
        dtype=ready.dtype,
        kv_dtype=ready.kv_dtype,
        origin=origin,
        training=training,
        chat=open_chat(description),
        features=features,
    )
