"""The Transformer. Its modules carry Hugging Face's names, so that `state_dict` is the weight file."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shared.lm.attention import Attention, document_mask
from shared.lm.config import ModelConfig
from shared.lm.kernel_calls import uses_kernels
from shared.lm.kv_cache import CacheWindow, KVCache
from shared.lm.linear import Linear
from shared.lm.norm import RMSNorm
from shared.lm.operators import swiglu
from shared.lm.rope import RotaryEmbedding
from shared.lm.weight_shapes import VALUE_FACTORS


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): a gated pair of projections up, and one down.

    The activations "silu" and "relu2" have no gate; "relu2" is the square of ReLU (So et al. 2021, arXiv 2109.08668).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        gated = config.activation == "swiglu"
        self.squared = config.activation == "relu2"
        self.gate_proj = Linear(config.d_model, config.d_ff) if gated else None
        self.up_proj = Linear(config.d_model, config.d_ff)
        self.down_proj = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., d_model] to [..., d_model]."""
        up = self.up_proj(x)
        if self.gate_proj is not None:
            gate = self.gate_proj(x)
            inner = swiglu(gate, up) if uses_kernels(gate, up) else F.silu(gate) * up
        elif self.squared:
            positive = F.relu(up)
            inner = positive * positive  # not `square`, which autocast computes in float32
        else:
            inner = F.silu(up)
        return self.down_proj(inner)  # type: ignore[no-any-return] # nn.Module returns Any


class Block(nn.Module):
    """Attention and feed-forward, each on a normalized copy of the residual stream.

    With post-norm, each sum is normalized instead, by `post_attention_layernorm` and `post_feedforward_layernorm`.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.post_norm = config.norm == "post"
        self.dropout = 0.0  # see Transformer.set_dropout

        def norm(*, exists: bool) -> nn.Module:
            if not exists:
                return nn.Identity()
            return RMSNorm(config.d_model, config.norm_eps, for_products=not self.post_norm)

        self.input_layernorm = norm(exists=config.norm == "pre")
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = norm(exists=config.norm != "none")
        self.mlp = FeedForward(config)
        self.post_feedforward_layernorm = norm(exists=config.norm == "post")

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        window: CacheWindow | None = None,
        mask: Tensor | None = None,
        first_values: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Map [B, T, d_model] to [B, T, d_model]; `first_values` as in `Attention`, which returns them too."""
        dropout = self.dropout if self.training and window is None else 0.0
        mixed, first_values = self.self_attn(self.input_layernorm(x), rotation, window, mask, first_values)
        x = x + F.dropout(mixed, dropout)
        if self.post_norm:
            x = self.post_attention_layernorm(x)
            return self.post_feedforward_layernorm(x + F.dropout(self.mlp(x), dropout)), first_values
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), dropout), first_values


class Decoder(nn.Module):
    """Embedding, blocks and final norm: everything but the output projection.

    Attributes:
        checkpoint_activations: Keep only the input of each block for the backward pass, which computes the rest again.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        weight = torch.empty(config.vocab_size, config.d_model)
        # Initializing on the meta device makes torch import its compiler, which takes seconds.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, _weight=weight if weight.is_meta else None)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        has_norm = config.norm == "pre"
        self.norm = RMSNorm(config.d_model, config.norm_eps, for_products=True) if has_norm else nn.Identity()
        self.rotary = RotaryEmbedding(config.rope, config.head_dim) if config.position == "rope" else None
        self.dropout = 0.0  # see Transformer.set_dropout
        self.checkpoint_activations = False

    def forward(
        self,
        tokens: Tensor,
        window: CacheWindow | None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Map tokens [B, T] to the normalized residual stream [B, T, d_model].

        Args:
            tokens: int64 [B, T].
            window: A view of the KV cache, which has positions and a mask of its own.
            mask: As in `attend`.
            positions: int64 [B, T]; from 0 on if None.
        """
        rotation = None
        if self.rotary is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device) if window is None else window.positions
            rotation = self.rotary(positions)
        x = F.dropout(self.embed_tokens(tokens), self.dropout if self.training and window is None else 0.0)
        first_values = None
        recomputes = self.checkpoint_activations and torch.is_grad_enabled() and window is None
        for block in self.layers:
            if recomputes:
                random = self.training and self.dropout > 0
                inputs = (x, rotation, None, mask, first_values)
                x, first_values = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=random)
            else:
                x, first_values = block(x, rotation, window, mask, first_values)
        return self.norm(x)  # type: ignore[no-any-return] # nn.Module returns Any


class Transformer(nn.Module):
    """A Llama-shaped decoder-only language model.

    A new model has random weights: normal with `initializer_range`, the two projections that add to the residual stream
    scaled down by sqrt(2 * num_layers), as GPT-2's are (Radford et al. 2019, section 2.3); gains are 1, biases 0, and
    the factors of value residuals 0.5.

    Training mode and evaluation mode compute the same, unless `set_dropout` was called.

    Attributes:
        config: The architecture.
        document_start: The id that begins a document, if tokens may attend only to their own document: attention is
            then masked in every pass without a cache. None, the default, for plain causal attention.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = None if config.tie_embeddings else Linear(config.d_model, config.vocab_size)
        self.document_start: int | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the weights from torch's global random generator; nothing happens on the meta device."""
        if self.model.embed_tokens.weight.is_meta:
            return
        std = self.config.initializer_range
        residual_std = std / (2 * self.config.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(VALUE_FACTORS):
                nn.init.constant_(parameter, 0.5)
            elif parameter.ndim == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=residual_std if name.endswith(_RESIDUAL_PROJECTIONS) else std)

    def set_dropout(self, dropout: float) -> None:
        """Set the dropout of embeddings, attention weights and residual branches (GPT-2's three places).

        It applies only in training mode, and never in a pass with a cache. It is not part of `config`.
        """
        for module in self.modules():
            if isinstance(module, Decoder | Block | Attention):
                module.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every next token.

        Args:
            tokens: int64 [B, T], T at most the context length.

        Returns:
            [B, T, vocab_size]; position t attends to tokens 0 to t.

        Raises:
            ValueError: More tokens than the context length.
        """
        return self.logits(self.hidden(tokens))

    def hidden(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the final residual stream, which `logits` maps to the vocabulary.

        Args:
            tokens: int64 [B, T]. With a cache, these are the new tokens only.
            cache: Holds earlier tokens. Row b's tokens are written to it, attend to all earlier positions of its slot,
                and to each other causally.
            slots: int64 [B], the cache slot of each row; 0 to B-1 if None.
            positions: int64 [B], the position of each row's first token; 0 if None.

        Returns:
            [B, T, d_model].

        Raises:
            ValueError: More tokens than fit in the context or in a slot, or slots that do not exist or repeat; the
                cache is then unchanged.
        """
        batch, num_tokens = tokens.shape
        if cache is None:
            if slots is not None or positions is not None:
                raise ValueError("slots and positions need a cache")
            if num_tokens > self.config.context_length:
                raise ValueError(f"{num_tokens} tokens exceed the context length of {self.config.context_length}")
            mask = None if self.document_start is None else document_mask(tokens, self.document_start)
            return self.model(tokens, None, mask)  # type: ignore[no-any-return] # nn.Module returns Any
        rows = list(range(batch)) if slots is None else slots.tolist()
        starts = [0] * batch if positions is None else positions.tolist()
        return self.model(tokens, cache.open(rows, starts, num_tokens))  # type: ignore[no-any-return]

    def hidden_of_branches(self, tokens: Tensor, branches: Tensor, positions: Tensor) -> Tensor:
        """Return the final residual stream of texts that begin alike, whose common beginning is in a row only once.

        Args:
            tokens: int64 [B, T]: the beginning, then what follows it in each of the texts.
            branches: int64 [B, T]: 0 for the beginning, else the number of the text. A token attends to those before it
                that belong to the beginning or to its own text.
            positions: int64 [B, T]: of each token in its text; below the context length.

        Returns:
            [B, T, d_model].
        """
        rows, columns = branches.unsqueeze(2), branches.unsqueeze(1)
        seen = (columns == 0) | (rows == columns)
        mask = (seen & torch.ones_like(seen[0]).tril()).unsqueeze(1)
        return self.model(tokens, None, mask, positions)  # type: ignore[no-any-return] # nn.Module returns Any

    def logits(self, hidden: Tensor) -> Tensor:
        """Map [..., d_model] to [..., vocab_size]."""
        return self.cap(F.linear(hidden, self.output_weight))

    def cap(self, logits: Tensor) -> Tensor:
        """Apply the config's soft cap, if there is one, to logits that were computed without `logits`."""
        cap = self.config.logit_soft_cap
        return cap * torch.tanh(logits / cap) if cap else logits

    @property
    def output_weight(self) -> Tensor:
        """The output projection, [vocab_size, d_model]; a tied one is the embedding."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight


_RESIDUAL_PROJECTIONS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
