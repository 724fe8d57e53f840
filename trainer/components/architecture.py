"""The settings of a model that exists: the inverse of `model_config`."""

from typing import Any

from shared.lm import GenerationDefaults, ModelConfig

_SAME = ("d_model", "num_layers", "num_heads", "num_kv_heads", "context_length", "qk_norm", "tie_embeddings")
_EXPERIMENTS = ("norm", "position", "activation", "logit_soft_cap", "value_residual")
_SAMPLES = ("temperature", "top_p")
_OTHERS = ("d_ff", "rope_theta", "initializer_range", "initialization", "zero_outputs")

FOLDER_SETTINGS = (*_SAME, *_EXPERIMENTS, *_OTHERS, *_SAMPLES)
"""The settings that a model folder decides."""


def architecture_settings(config: ModelConfig) -> dict[str, Any]:
    """The settings of the model that its configuration decides.

    What no setting expresses, such as biases, a scaling of RoPE, or the width of a head, is not among them.
    """
    # Without a gate, a feed-forward layer has 3/2 of the width in the settings.
    d_ff = config.d_ff if config.activation == "swiglu" else -(-config.d_ff * 2 // 3)
    return {
        **{name: getattr(config, name) for name in (*_SAME, *_EXPERIMENTS)},
        "d_ff": d_ff,
        "rope_theta": config.rope.theta,
        "initializer_range": config.initializer_range,
        "initialization": "folder",
        "zero_outputs": "none",
    }


def generation_settings(defaults: GenerationDefaults) -> dict[str, Any]:
    """The settings of samples that a model's defaults decide."""
    return {name: getattr(defaults, name) for name in _SAMPLES}
