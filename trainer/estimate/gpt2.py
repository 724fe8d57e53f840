"""The shapes of GPT-2, as CS336 compares their costs (assignment 1, section 3)."""

from shared.lm import ModelConfig

_SIZES = {  # layers, d_model, heads
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}


def gpt2_configs() -> dict[str, ModelConfig]:
    """GPT-2's widths and depths in this package's architecture, the shapes of the presets `gpt2-small` to `gpt2-xl`.

    With a feed-forward of three matrices of 4 x d_model and an output projection of its own they have more parameters
    than GPT-2, whose feed-forward has two and whose output projection is the embedding.
    """
    return {
        name: ModelConfig(
            vocab_size=50_257,
            context_length=1_024,
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=d_model // num_heads,
            d_ff=4 * d_model,
            tie_embeddings=False,
        )
        for name, (num_layers, d_model, num_heads) in _SIZES.items()
    }
