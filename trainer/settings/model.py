"""Settings of the model: its size as a whole, and every part of its shape."""

from dataclasses import dataclass
from typing import Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, setting

PresetName = Literal[
    "stories260k",
    "stories15m",
    "stories42m",
    "stories110m",
    "tinystories-33m",
    "cs336",
    "nanogpt-char",
    "smollm-135m",
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
]


@Parameter(name="*", group=Group("Scaling preset: one option that all sizes derive from", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class ScalingSettings(Settings):
    """What the model's shape, the batch, the learning rate and the number of steps derive from (`recipes.scaling`)."""

    depth: int | None = None
    """Layers; width, batch, learning rate and steps follow, and are printed with their sources. 4 to 8 for stories on a
    CPU; 12 is GPT-2's smallest, for a GPU. Options that you set yourself take precedence."""

    preset: PresetName | None = None
    """A published model instead: its shape, initialization, optimizer, batch, learning rate and steps, as far as its
    sources give them."""

    improved: bool = False
    """With --preset: its shape alone; everything else as for a model of a --depth, by our recipe."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.improved and self.preset is None:
            raise UsageError("--improved asks for our recipe on a published shape: give --preset as well")


@Parameter(name="*", group=Group("Model: what is trained", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The shape of the Transformer."""

    d_model: int = setting(256, minimum=1)
    """Width of the residual stream. 128 is enough for toy languages, 256 for simple stories, 768 is GPT-2's smallest.
    Parameters and time grow with its square. A multiple of 64 runs fastest."""

    num_layers: int = setting(4, minimum=1)
    """Depth. 4 to 8 for small models; width and depth are best increased together (d_model about 64 a layer)."""

    num_heads: int | None = setting(None, minimum=1)
    """Attention heads; must divide d_model. Default: one for each 64 of d_model."""

    num_kv_heads: int | None = setting(None, minimum=1)
    """Key/value heads; must divide num_heads. Fewer than num_heads (a quarter, say) shrink the cache that serving
    needs, at a small loss of quality. Default: num_heads."""

    d_ff: int | None = setting(None, minimum=1)
    """Width of the SwiGLU layer. Default: 8/3 of d_model, rounded up to a multiple of 64, the usual choice. With
    another --activation the layer is 3/2 as wide, so that the parameters are as many."""

    context_length: int = setting(256, minimum=1)
    """The longest text the model can attend to, in tokens. Long enough for one of your documents: 256 for stories,
    1024 for articles."""

    qk_norm: bool = True
    """Normalize queries and keys (Qwen3's architecture; without it, Llama's): learns faster at high learning rates,
    with mimetic initialization above all, for a few percent of time."""

    tie_embeddings: bool = True
    """Use one matrix for input and output embeddings. Saves vocab_size x d_model parameters: right for small models."""

    rope_theta: float = setting(100_000.0, minimum=1)
    """Base of the rotary position embedding. 10000 is usual up to a context of about 4096; 100000 helps mimetic
    initialization, and 500000 (Llama 3) serves longer contexts."""

    initialization: Literal["normal", "xavier", "mimetic", "folder"] = "mimetic"
    """How weights are initialized. normal: as in GPT-2. xavier: each matrix by its own size, embeddings by 1, as in
    CS336. mimetic: with attention that copies, so that names stay the same within a text after a million tokens rather
    than many: what matters in short runs of small models. folder: not at all; --init sets this."""

    initializer_range: float = 0.04
    """Standard deviation of initial weights; not used with xavier. 0.02 is usual for large models; small ones start
    faster with 0.04."""

    norm: Literal["pre", "post", "none"] = "pre"
    """For experiments: RMSNorm before each part of a block (usual), after it as in the first Transformer, or none. A
    model with this or one of the next four changed is a research checkpoint: only the trainer opens it."""

    position: Literal["rope", "none"] = "rope"
    """For experiments: rotary position embedding (usual), or none."""

    activation: Literal["swiglu", "silu", "relu2"] = "swiglu"
    """For experiments: SwiGLU (usual), or at equally many parameters SiLU without a gate, or the square of ReLU (So et
    al. 2021, "Primer", arXiv 2109.08668)."""

    logit_soft_cap: float = setting(0.0, minimum=0)
    """For experiments: keep logits within plus and minus this, by cap * tanh(logit / cap). 30 in Gemma 2 (arXiv
    2408.00118); 0 for none."""

    value_residual: bool = False
    """For experiments: mix each layer's attention values with the first layer's, by two learned factors that begin at
    0.5 (Zhou et al. 2024, "Value Residual Learning", arXiv 2410.17897)."""

    zero_outputs: Literal["none", "blocks", "head", "all"] = "none"
    """For experiments: projections that start at zero. blocks: those that each block adds to the residual stream, so
    that it begins as the identity (Zhang et al. 2019, "Fixup", arXiv 1901.09321); needs --initialization normal. head:
    the output projection (Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, appendix D.2); needs
    --no-tie-embeddings. The folder is a usual one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zero_outputs in {"blocks", "all"} and self.initialization == "mimetic":
            raise UsageError(
                f"--zero-outputs {self.zero_outputs} zeroes the projections that mimetic initialization fills: add "
                "--initialization normal"
            )
        if self.zero_outputs in {"head", "all"} and self.tie_embeddings:
            raise UsageError(
                f"--zero-outputs {self.zero_outputs} would set the embedding to zero, which is also the output "
                "projection: add --no-tie-embeddings"
            )
