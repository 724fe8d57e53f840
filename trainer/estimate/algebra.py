"""A training step in algebra, as CS336's assignment 1 asks for it (problem "adamwAccounting").

Memory and operations of a batch of B windows, in float32, from the sizes of the model alone, as in a textbook. This
package's own step fuses attention and never holds all logits; `step_memory` estimates what it takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sympy

from shared.lm import ModelConfig
from shared.lm.accounting import ADAMW_FLOPS, BACKWARD_PER_FORWARD, SGD_FLOPS

_FLOAT = 4  # bytes

B, P, V, T, L, d, f, h, q, k = sympy.symbols("B P V T L d f h q k")
_MEANINGS = {
    V: "vocabulary",
    T: "context length",
    L: "layers",
    d: "width of the residual stream",
    f: "width of the feed-forward layer",
    h: "heads",
    q: "width of all queries",
    k: "width of all keys",
}


@dataclass(frozen=True)
class Line:
    """A quantity.

    Attributes:
        name: What it is.
        formula: In symbols, as a Python expression.
        value: With this model's sizes: a number, or an expression in B.
    """

    name: str
    formula: str
    value: str


@dataclass(frozen=True)
class Algebra:
    """A training step in algebra.

    Attributes:
        symbols: Meaning and value of each symbol; B is the number of windows in a batch.
        parameters: Their number, P.
        activations: Numbers kept of each token by each layer, and by the whole model.
        memory: Bytes of each part, and in all.
        operations: Of matrix products and of the optimizer.
        slope: Bytes of each window.
        constant: Bytes beside that.
        memory_bytes: What there is; None if that is not known.
    """

    symbols: dict[str, tuple[str, int]]
    parameters: Line
    activations: list[Line]
    memory: list[Line]
    operations: list[Line]
    slope: int
    constant: int
    memory_bytes: int | None

    @property
    def largest_batch(self) -> int | None:
        """The largest B for which slope B + constant is at most `memory_bytes`; 0 if none is."""
        if self.memory_bytes is None:
            return None
        return max(0, (self.memory_bytes - self.constant) // self.slope)


def step_algebra(
    config: ModelConfig,
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw",
    memory_bytes: int | None = None,
    *,
    momentum: float = 0.0,
) -> Algebra:
    """The algebra of a model's training step.

    Activations are those that the exercise lists, each once: norms; queries, keys and values, their scores, the
    softmax, the weighted sum and the output projection; the first product of the feed-forward layer, its SiLU and its
    last product (SwiGLU's gate is not in the list); the final norm, the logits and their cross-entropy.

    Args:
        config: The model.
        optimizer: Decides about the state.
        memory_bytes: What there is.
        momentum: SGD's, which keeps a value for each parameter where it is not 0.
    """
    sizes = _sizes(config)
    matrices = _matrices(config)
    tied = 1 if config.tie_embeddings else 2
    count = tied * V * d + L * (matrices + _gains(config)) + (d if config.norm == "pre" else 0)
    count += 2 * (L - 1) if config.value_residual else 0
    layer, whole = _layer_activations(config), _whole_activations(config)
    kept = L * sum(layer.values()) + sum(whole.values())
    state = {
        "adamw": 2 * P,
        "muon": 2 * P - L * matrices,  # it has one value for each of its own
        "sgd": P if momentum else sympy.Integer(0),
    }[optimizer]
    parts = {
        "parameters": _FLOAT * P,
        "gradients": _FLOAT * P,
        "optimizer state": _FLOAT * state,
        "activations": _FLOAT * B * T * kept,
    }
    total = sum(parts.values())
    forward = 2 * B * T * (L * (matrices + 2 * T * _width(config)) + V * d)
    operations = {
        "forward pass": forward,
        "backward pass": BACKWARD_PER_FORWARD * forward,
        **({"AdamW's update": ADAMW_FLOPS * P} if optimizer == "adamw" else {}),
        **({"SGD's update": (SGD_FLOPS + (2 if momentum else 0)) * P} if optimizer == "sgd" else {}),
    }
    values = {**sizes, P: int(count.subs(sizes))}
    numbers = total.subs(values)
    return Algebra(
        symbols={str(symbol): (_MEANINGS[symbol], sizes[symbol]) for symbol in sizes},
        parameters=_line("P", count, values),
        activations=[
            *(_line(f"each layer: {name}", formula, values) for name, formula in layer.items()),
            *(_line(name, formula, values) for name, formula in whole.items()),
            _line("all of a token", kept, values),
        ],
        memory=[_line(name, formula, values) for name, formula in {**parts, "total": total}.items()],
        operations=[_line(name, formula, values) for name, formula in operations.items()],
        slope=int(numbers.coeff(B, 1)),
        constant=int(numbers.coeff(B, 0)),
        memory_bytes=memory_bytes,
    )


def _sizes(config: ModelConfig) -> dict[Any, int]:
    """The symbols that the formulas use, with their values."""
    c = config
    sizes = {V: c.vocab_size, T: c.context_length, L: c.num_layers, d: c.d_model, f: c.d_ff, h: c.num_heads}
    if _width(config) is q:
        sizes[q] = c.num_heads * c.head_dim
    if _key_width(config) is k:
        sizes[k] = c.num_kv_heads * c.head_dim
    return sizes


def _width(config: ModelConfig) -> Any:
    """The width of all queries: usually d."""
    return d if config.num_heads * config.head_dim == config.d_model else q


def _key_width(config: ModelConfig) -> Any:
    """The width of all keys: that of the queries, unless heads share them."""
    return _width(config) if config.num_kv_heads == config.num_heads else k


def _matrices(config: ModelConfig) -> Any:
    """Parameters of a layer's matrices."""
    up = 2 if config.activation == "swiglu" else 1
    return 2 * d * _width(config) + 2 * d * _key_width(config) + (up + 1) * d * f


def _gains(config: ModelConfig) -> Any:
    """Parameters of a layer that are no matrices: gains of norms, and biases."""
    norms = sympy.Integer(0) if config.norm == "none" else 2 * d
    head_norms = 2 * _width(config) / h if config.qk_norm else 0
    return norms + head_norms + sum(config.attention_biases.values())


def _layer_activations(config: ModelConfig) -> Mapping[str, Any]:
    width, keys = _width(config), _key_width(config)
    return {
        **({} if config.norm == "none" else {"two norms": 2 * d}),
        "queries, keys and values": width + 2 * keys,
        "scores": h * T,
        "softmax": h * T,
        "weighted values": width,
        "output projection": d,
        "first product": f,
        **({"ReLU": f, "square": f} if config.activation == "relu2" else {"SiLU": f}),
        "last product": d,
    }


def _whole_activations(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **({"values mixed with the first layer's": (L - 1) * _key_width(config)} if config.value_residual else {}),
        **({"final norm": d} if config.norm == "pre" else {}),
        "logits": V,
        **({"capped logits": V} if config.logit_soft_cap else {}),
        "cross-entropy": V,
    }


def _line(name: str, formula: Any, values: Mapping[Any, int]) -> Line:
    return Line(name, str(formula), _in_figures(sympy.sympify(formula).subs(values)))


def _in_figures(value: Any) -> str:
    """A number, or a linear expression in B, with separators of thousands."""
    slope, constant = int(value.coeff(B, 1)), int(value.coeff(B, 0))
    if not slope:
        return f"{constant:,}"
    return f"{slope:,}*B" + (f" + {constant:,}" if constant else "")
