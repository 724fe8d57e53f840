"""The cost of a model by component: parameters, and floating-point operations (FLOPs) of a training step.

A matrix product counts 2 x m x n x k. Nothing else is counted in a forward or backward pass: norms, activations and
softmax take a few operations per value, far below one percent. Causal attention is counted as if every token attended
to every other, as CS336 and Kaplan et al. 2020 (arXiv 2001.08361) do: kernels that skip the masked half need fewer.
"""

from dataclasses import dataclass
from typing import Literal

from shared.lm.config import ModelConfig

BACKWARD_PER_FORWARD = 2
"""The backward pass of a product is two products of its size: the gradients of both factors."""

ADAMW_FLOPS = 14
"""FLOPs per parameter in AdamW: first moment 3 (two products, one sum), second moment 4, step 5 (square root, epsilon,
quotient, learning rate, difference), decay 2. The bias correction is the same for all parameters, and not counted."""

SGD_FLOPS = 4
"""FLOPs per parameter in SGD: decay 2 (product, sum), step 2 (learning rate, difference). Momentum adds 2."""

MUON_STEPS = 5
"""Newton-Schulz iterations of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

MUON_FLOPS = 12
"""FLOPs per parameter in Muon outside the iterations: momentum 3, Nesterov step 3, norm and quotient 3, decay 1,
update 2."""


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of each component; a tied output projection has none of its own.

    Attributes:
        embedding: [vocab_size, d_model].
        attention: Query, key, value and output projections of all layers, with their biases and value residuals.
        feed_forward: Of all layers.
        norms: Gains of all norms.
        output: The projection to the vocabulary.
    """

    embedding: int
    attention: int
    feed_forward: int
    norms: int
    output: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.embedding + self.attention + self.feed_forward + self.norms + self.output


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of one forward pass, by component.

    Attributes:
        projections: Queries, keys, values and the output of attention.
        scores: Queries times keys, and their softmax times values.
        feed_forward: All of its matrices.
        output: The projection to the vocabulary.
    """

    projections: int
    scores: int
    feed_forward: int
    output: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.projections + self.scores + self.feed_forward + self.output


def count_parameters(config: ModelConfig) -> Parameters:
    """The number of parameters by component; their sum is `config.num_parameters`."""
    c = config
    gains = (0 if c.norm == "none" else 2 * c.d_model) + (2 * c.head_dim if c.qk_norm else 0)
    embedding = c.vocab_size * c.d_model
    return Parameters(
        embedding=embedding,
        attention=c.num_layers * (_size(_attention_shapes(c)) + sum(c.attention_biases.values())) + c.value_factors,
        feed_forward=c.num_layers * _size(_feed_forward_shapes(c)),
        norms=c.num_layers * gains + (c.d_model if c.norm == "pre" else 0),
        output=0 if c.tie_embeddings else embedding,
    )


def forward_flops(config: ModelConfig, *, sequences: int = 1, length: int | None = None) -> ForwardFlops:
    """FLOPs of a forward pass that returns the logits of every token.

    Args:
        config: The model.
        sequences: Batch size.
        length: Tokens of each sequence; the context length if None. It may exceed that.
    """
    c = config
    length = length or c.context_length
    tokens = sequences * length
    return ForwardFlops(
        projections=2 * tokens * c.num_layers * _size(_attention_shapes(c)),
        scores=4 * tokens * length * c.num_layers * c.num_heads * c.head_dim,
        feed_forward=2 * tokens * c.num_layers * _size(_feed_forward_shapes(c)),
        output=2 * tokens * c.vocab_size * c.d_model,
    )


def optimizer_flops(
    config: ModelConfig, optimizer: Literal["adamw", "muon", "sgd"] = "adamw", *, momentum: float = 0.0
) -> int:
    """FLOPs of one optimizer step: AdamW or SGD for every parameter, or Muon for the matrices within blocks."""
    if optimizer == "sgd":
        return (SGD_FLOPS + (2 if momentum else 0)) * config.num_parameters
    if optimizer == "adamw":
        return ADAMW_FLOPS * config.num_parameters
    hidden = [shape for shapes in (_attention_shapes(config), _feed_forward_shapes(config)) for shape in shapes]
    others = config.num_parameters - config.num_layers * _size(hidden)
    return config.num_layers * sum(_muon_flops(*shape) for shape in hidden) + ADAMW_FLOPS * others


def _muon_flops(rows: int, columns: int) -> int:
    """Each iteration takes X to aX + (bA + cA²)X with A = XXᵀ, the matrix lying on its longer side."""
    small, large = sorted((rows, columns))
    products = 4 * small * small * large + 2 * small**3
    return MUON_STEPS * products + MUON_FLOPS * rows * columns


def _attention_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """The shapes of the matrices of one layer."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [(queries, config.d_model), (keys, config.d_model), (keys, config.d_model), (config.d_model, queries)]


def _feed_forward_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """The shapes of the matrices of one layer."""
    up = [(config.d_ff, config.d_model)] * (2 if config.activation == "swiglu" else 1)
    return [*up, (config.d_model, config.d_ff)]


def _size(shapes: list[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in shapes)
