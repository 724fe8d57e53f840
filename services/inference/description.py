"""What is known of a served model: its architecture, and where it came from."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from shared.lm import ModelConfig, ModelDescription, YarnScaling
from shared.lm.evaluations_file import read_evaluations
from shared.lm.json_file import read_json
from shared.lm.rope_config import Llama3Scaling, RopeScaling
from shared.system.checksums import CHECKSUMS_FILE

LARGEST_INT = 1 << 53  # beyond, JavaScript cannot distinguish neighbors
_LONGEST_NAME = 100

_SCALINGS: dict[type[RopeScaling], str] = {Llama3Scaling: "Llama 3", YarnScaling: "YaRN"}


class Architecture(BaseModel):
    """A decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    family: str = Field(description="Hugging Face's model_type: llama, qwen2 or qwen3")
    num_layers: int
    d_model: int = Field(description="Width of the residual stream")
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int = Field(description="Width of the feed-forward layers")
    rope_theta: float
    rope_scaling: str | None
    norm_eps: float
    qk_norm: bool = Field(description="RMSNorm on the queries and keys of each head")
    attention_bias: str = Field(description="The projections with a bias, of q, k, v and o")
    tie_embeddings: bool = Field(description="Input and output embedding are one matrix")
    parameters: dict[str, int] = Field(description="Weights of each part, over all layers")

    @classmethod
    def of(cls, config: ModelConfig) -> "Architecture":
        """The architecture of a model."""
        taken = {name: getattr(config, name) for name in cls.model_fields if hasattr(config, name)}
        rope = {"rope_theta": config.rope.theta, "rope_scaling": _scaling(config.rope.scaling)}
        return cls(**taken, **rope, parameters=config.parameters_by_part)


class Evaluation(BaseModel):
    """A result on a file of questions."""

    file: str
    format: str = Field(description="HellaSwag, ARC, LAMBADA or questions")
    questions: int
    metric: str
    value: float
    stderr: float | None = Field(description="Standard error")


class Origin(BaseModel):
    """Where a model folder came from, as far as its own files say."""

    ownlm_version: str | None = Field(None, description="The version of ownlm that wrote it; null: another program")
    architecture: str | None = Field(None, description="The first of config.json's architectures")
    transformers_version: str | None = Field(None, description="The version of transformers that wrote config.json")
    has_checksums: bool = Field(False, description="Whether its files were compared with their checksums")
    steps: int | None = Field(None, description="Training steps")
    tokens: int | None = Field(None, description="Tokens seen in training")
    validation_loss: float | None = Field(None, description="Nats per token")
    bits_per_byte: float | None = None
    evaluations: list[Evaluation] = Field([], description="What `evaluate --tasks … --record` has found")


def read_origin(folder: ModelDescription) -> Origin:
    """What a model folder says of itself. It may hold anything: values that cannot be are left out."""
    config, provenance = read_json(folder.path / "config.json"), folder.provenance
    architectures = config.get("architectures")
    return Origin(
        ownlm_version=_name(provenance.get("ownlm_version")),
        architecture=_name(architectures[0]) if isinstance(architectures, list) and architectures else None,
        transformers_version=_name(config.get("transformers_version")),
        has_checksums=(folder.path / CHECKSUMS_FILE).exists(),
        evaluations=[Evaluation(**each._asdict()) for each in read_evaluations(folder.path)],
        **_training(provenance.get("training")),
    )


def _scaling(scaling: RopeScaling | None) -> str | None:
    return None if scaling is None else f"{_SCALINGS.get(type(scaling), 'linear')}, factor {scaling.factor:g}"


def _training(training: object) -> dict[str, Any]:
    values = training if isinstance(training, Mapping) else {}
    counts = {name: values.get(name) for name in ("steps", "tokens")}
    results = {name: values.get(name) for name in ("validation_loss", "bits_per_byte")}
    return {
        **{name: value for name, value in counts.items() if type(value) is int and 0 <= value <= LARGEST_INT},
        **{name: value for name, value in results.items() if type(value) is float and math.isfinite(value)},
    }


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME else None
