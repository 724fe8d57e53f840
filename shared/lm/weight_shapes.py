"""The names and shapes of a model's weights, under Hugging Face's names. No torch."""

from collections.abc import Iterator

from shared.lm.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
VALUE_FACTORS = "self_attn.value_factors"


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight, as in `Transformer.state_dict`; a tied output projection has none."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.d_model)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config)}
        if config.value_residual and layer:
            shapes[f"model.layers.{layer}.{VALUE_FACTORS}"] = (2,)
    if config.norm == "pre":
        shapes["model.norm.weight"] = (config.d_model,)
    if not config.tie_embeddings:
        shapes[OUTPUT] = (config.vocab_size, config.d_model)
    return shapes


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for name, width in (("q", queries), ("k", keys), ("v", keys)):
        yield f"self_attn.{name}_proj.weight", (width, config.d_model)
    yield "self_attn.o_proj.weight", (config.d_model, queries)
    yield from ((f"self_attn.{name}_proj.bias", (width,)) for name, width in config.attention_biases.items())
    if config.qk_norm:
        yield from ((f"self_attn.{name}_norm.weight", (config.head_dim,)) for name in "qk")
    for name in ("gate", "up") if config.activation == "swiglu" else ("up",):
        yield f"mlp.{name}_proj.weight", (config.d_ff, config.d_model)
    yield "mlp.down_proj.weight", (config.d_model, config.d_ff)
    yield from ((f"{name}_layernorm.weight", (config.d_model,)) for name in _LAYER_NORMS[config.norm])


_LAYER_NORMS = {"pre": ("input", "post_attention"), "post": ("post_attention", "post_feedforward"), "none": ()}
