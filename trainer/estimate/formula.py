"""The memory that a training step takes at its peak, by a closed formula.

What the forward pass keeps for the backward pass follows from the model's code, tensor by tensor; a test compares the
formula with `traced_peak`, which records the tensors of the real code.
"""

from shared.lm import ModelConfig
from shared.lm.accounting import count_parameters
from trainer.components.lora import adapter_sizes, trained_parameters
from trainer.components.loss import chunk_rows
from trainer.compute.device import Device
from trainer.settings.lora import ALL_WEIGHTS, LINEAR_LAYERS, LoraSettings
from trainer.settings.train import OptimizationSettings

PARAMETERS, GRADIENTS, OPTIMIZER, TEMPORARY = "parameters", "gradients", "optimizer state", "temporary"

_STREAM = "residual stream"
_ATTENTION, _AFTER_FIRST_NORM, _AFTER_SECOND_NORM = LINEAR_LAYERS[:4], LINEAR_LAYERS[:3], LINEAR_LAYERS[4:6]

_FLOAT = 4  # bytes of float32: of weights, gradients, optimizer state, residual stream and norms


def formula_peak(
    o: OptimizationSettings, config: ModelConfig, device: Device, passes: int, lora: LoraSettings = ALL_WEIGHTS
) -> dict[str, int]:
    """Bytes at the peak of a step of `passes` passes, by component.

    Args:
        o: Batch size, optimizer, dropout, document mask and checkpointing.
        config: The model's configuration.
        device: Where the run computes.
        passes: 1, or 2 where gradients are accumulated.
        lora: Which weights are trained.
    """
    return _StepFormula(o, config, device, lora).peak(passes)


class _StepFormula:
    """Bytes of the parts of a step."""

    def __init__(self, o: OptimizationSettings, config: ModelConfig, device: Device, lora: LoraSettings) -> None:
        self.config, self.settings = config, o
        self.counts = count_parameters(config)
        self.lora = lora
        self.is_full = lora.lora_rank is None
        self.trained = _FLOAT * trained_parameters(config, lora)
        self.targets = set(LINEAR_LAYERS) if self.is_full else set(adapter_sizes(config, lora))
        self.tokens = o.batch_size * config.context_length
        self.stream = _FLOAT * self.tokens * config.d_model  # one tensor of the residual stream
        self.width = device.dtype.itemsize  # of a number in matrix products
        self.casts = self.width < _FLOAT  # autocast keeps copies of inputs and weights
        self.rows = min(self.tokens, chunk_rows(device.torch_device))
        # A CPU computes attention with dropout by elementary operators; GPUs have fused kernels.
        self.on_cpu = device.torch_device.type == "cpu"
        self.keeps_scores = self.on_cpu and o.dropout > 0
        # Our norms on a CPU write what the products read; elsewhere, and of other tensors, autocast makes copies.
        self.casts_inputs = self.casts and not (self.on_cpu and config.norm == "pre")
        # FlashAttention's output has the layout of the queries, so that the projection copies it; our kernel on a CPU,
        # and a GPU's for float32 and masks, write what the projection reads.
        self.copies_output = o.document_mask if self.on_cpu else self.casts and not o.document_mask

    def peak(self, passes: int) -> dict[str, int]:
        """Bytes by component at the moment at which they take the most memory."""
        counts, layers = self.counts, self.config.num_layers
        weights, vocabulary = _FLOAT * counts.total, _FLOAT * counts.embedding * self.is_full  # whose gradient is made
        blocks = _FLOAT * (counts.attention + counts.feed_forward + counts.norms) if self.is_full else self.trained
        layer, outside = self._layer(), self._outside()
        if self.settings.checkpoint_activations:
            kept = outside | {_STREAM: outside[_STREAM] + layers * self.stream}  # the inputs of blocks
            again = layer | {_STREAM: layer[_STREAM] - self.stream}  # what is computed again has its input already
        else:
            kept = {name: layers * layer[name] + outside[name] for name in outside}
            if self.targets.isdisjoint(_ATTENTION):  # nothing flows back into the first layer's attention
                kept |= {"attention": kept["attention"] - layer["attention"], "embedding": 0}
                kept[_STREAM] -= self.stream
            again = dict.fromkeys(kept, 0)
        last = {name: kept[name] + again[name] for name in kept}
        first = {name: kept[name] // layers + again[name] for name in kept}
        nothing = dict.fromkeys(kept, 0)
        outputs = self.tokens * self.config.d_model * self.width + vocabulary  # gradients of the output projection
        moments = [  # activations, gradients, and what else exists at the moment
            (kept, 0, outputs + self._loss_chunk()),
            (kept, 0, 3 * outputs),  # the loss's backward pass: saved gradients, scaled ones, zeros
            (last, 0, vocabulary + self._layer_backward()),  # the last layer
            (first, blocks * (layers - 1) // layers, vocabulary + self._layer_backward()),  # the first
            (nothing, blocks, 3 * vocabulary + self.stream),  # the embedding's backward pass
            (nothing, self.trained, self._update()),
        ]
        if passes > 1:
            moments = [(activations, self.trained, rest) for activations, _, rest in moments]
        activations, gradients, rest = max(moments, key=lambda moment: sum(moment[0].values()) + sum(moment[1:]))
        return {
            PARAMETERS: weights
            + self.trained * (not self.is_full)
            + (_FLOAT * self.config.head_dim // 2 if self.config.position == "rope" else 0),
            OPTIMIZER: self._state(),
            GRADIENTS: gradients,
            **activations,
            TEMPORARY: rest,
        }

    def _layer(self) -> dict[str, int]:
        """What the forward pass of one layer keeps for the backward pass."""
        c, layers, copies = self.config, self.config.num_layers, self.width if self.casts else 0
        norms = 0 if c.norm == "none" else self._norm(*_AFTER_FIRST_NORM) + self._norm(*_AFTER_SECOND_NORM)
        stream = 0 if c.norm == "none" and self.casts else 2 * self.stream
        if self.settings.dropout:  # a mask for each sublayer
            stream += 2 * self.stream * (self.width if self.on_cpu else 1) // _FLOAT
        return {
            "embedding": 0,
            "attention": self.tokens * self._attention() + copies * self.counts.attention // layers,
            "feed-forward": self.tokens * self._feed_forward() + copies * self.counts.feed_forward // layers,
            "adapters": self.tokens * self.width * (self.lora.lora_rank or 0) * len(self.targets),
            "norms": norms,
            _STREAM: stream,
        }

    def _outside(self) -> dict[str, int]:
        """What the forward pass keeps outside of the layers, or once for all of them."""
        c = self.config
        norms = self._norm(*LINEAR_LAYERS) if c.norm == "pre" else 0
        if self.casts_inputs and c.norm != "none":
            norms += self.stream  # of the last norm; the outputs of others exist as the copies that autocast makes
        stream = _FLOAT * c.context_length * c.head_dim if c.position == "rope" else 0
        if c.norm == "none" and self.casts:
            stream += self.stream
        if self.settings.dropout:  # the embedding's mask, and its product
            stream += 2 * self.stream
        return {
            "embedding": 0 if self.settings.dropout else self.stream,
            "attention": self._values(),
            "feed-forward": 0,
            "adapters": 0,
            "norms": norms,
            _STREAM: stream,
        }

    def _attention(self) -> int:
        """Of one token in one layer."""
        c = self.config
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        size = 3 * c.d_model * self.width if self.casts_inputs else 0  # a copy of the input for each projection
        if c.qk_norm:
            inputs = self.width if self.on_cpu else _FLOAT  # GPUs have them in float32 even under autocast
            size += inputs * (queries + keys) + _FLOAT * (c.num_heads + c.num_kv_heads)
        if self.keeps_scores:  # softmax, mask and product; scaled queries and keys, and values, all for each query head
            return size + 3 * _FLOAT * (c.num_heads * c.context_length + queries) + self.width * queries
        size += self.width * (2 * queries + 2 * keys) + _FLOAT * c.num_heads
        if self.copies_output and (c.qk_norm or c.position == "rope"):
            size += self.width * queries
        return size + (self.width * c.context_length if self.settings.document_mask else 0)

    def _values(self) -> int:
        """With value residuals, the values of all layers but the first before they are mixed with the first's.

        With checkpointing, those of the first layer, and of the one that is computed again.
        """
        c = self.config
        if not c.value_residual:
            return 0
        layers = 2 if self.settings.checkpoint_activations else c.num_layers - 1
        return layers * self.tokens * self.width * c.num_kv_heads * c.head_dim

    def _feed_forward(self) -> int:
        """Of one token in one layer."""
        c = self.config
        inputs, inner = (2, 3 if self.on_cpu else 4) if c.activation == "swiglu" else (1, 2)
        inner -= "down_proj" not in self.targets
        return self.width * (inputs * c.d_model * self.casts_inputs + inner * c.d_ff)

    def _norm(self, *readers: str) -> int:
        """Of one norm: its output, if that is not what autocast copies, and a number for each token.

        Layers that are frozen, and have no adapter, keep no input.
        """
        keeps_output = not self.casts_inputs and not self.targets.isdisjoint(readers)
        return keeps_output * self.stream * self.width // _FLOAT + _FLOAT * self.tokens

    def _loss_chunk(self) -> int:
        """Logits and copies while the loss goes through a chunk; those of the chunk before are still there."""
        logits = self.rows * self.config.vocab_size
        chunks = 2 if self.tokens > self.rows else 1
        has_cap = bool(self.config.logit_soft_cap)
        exact = _FLOAT * (chunks + has_cap)  # the logits, and their shares of the cap
        if not self.casts:
            return logits * exact
        copies = self.width * (self.tokens * self.config.d_model * self.casts_inputs + self.counts.embedding)
        narrow = self.width * chunks
        if self.on_cpu and not has_cap:  # the kernel works in the precision of the logits
            exact = 0
        last = logits * (self.width + exact // chunks) + self.width * self.counts.embedding
        return copies + max(logits * (exact or narrow), last)

    def _layer_backward(self) -> int:
        """What the backward pass of a layer adds at its peak, less the activations that are freed by then."""
        c = self.config
        inner = self.tokens * self.width * c.d_ff
        matrices = (1 if c.activation == "silu" else 2) + ("down_proj" not in self.targets)
        gradients = matrices * inner - self.stream
        if self.is_full:
            gradients += _FLOAT * c.d_ff * c.d_model
        sizes = [gradients, 0]
        if self.keeps_scores:
            scores = self.tokens * _FLOAT * c.num_heads * c.context_length
            sizes.append(scores - self.tokens * self._feed_forward() - 3 * self.stream)
        return max(sizes)

    def _update(self) -> int:
        """Muon orthogonalizes one matrix after the other, and SGD adds the decay to its gradient; AdamW takes none."""
        c = self.config
        matrix = max(c.d_ff, c.num_heads * c.head_dim) * (self.lora.lora_rank or c.d_model)
        if self.settings.optimizer == "sgd":
            return _FLOAT * max(matrix, self.counts.embedding * self.is_full)
        return 10 * matrix if self.settings.optimizer == "muon" else 0

    def _state(self) -> int:
        """AdamW has two values for each parameter, Muon one for those of its matrices, SGD at most one."""
        if self.settings.optimizer == "sgd":
            return self.trained if self.settings.momentum else 0
        matrices = _FLOAT * (self.counts.attention + self.counts.feed_forward) if self.is_full else self.trained
        return 2 * self.trained - (matrices if self.settings.optimizer == "muon" else 0)
