"""The keys and values of earlier tokens, allocated once."""

import torch
from torch import Tensor

from shared.lm.config import ModelConfig


class KVCache:
    """Keys and values of `num_slots` sequences of up to `max_length` tokens.

    Both tensors are [num_layers, num_slots, num_kv_heads, max_length, head_dim]. Each sequence has a slot of its own;
    a new sequence in a used slot starts at position 0 and never reads what the slot held before.

    Raises:
        ValueError: A size below 1, or `max_length` beyond the model's context length.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if num_slots < 1 or not 1 <= max_length <= config.context_length:
            raise ValueError(
                "a KV cache needs at least 1 slot and a max_length between 1 and the context length "
                f"({config.context_length}), got {num_slots} slots of {max_length} tokens"
            )
        shape = (config.num_layers, num_slots, config.num_kv_heads, max_length, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.num_slots = num_slots
        self.max_length = max_length
        self._written = [0] * num_slots

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def open(self, slots: list[int], positions: list[int], num_tokens: int) -> "CacheWindow":
        """Prepare a step in which row b of the batch writes `num_tokens` tokens to `slots[b]`, from `positions[b]` on.

        Raises:
            ValueError: A slot does not exist or appears twice, or tokens exceed a slot; the cache is then unchanged.
        """
        if len(set(slots)) != len(slots) or not all(0 <= slot < self.num_slots for slot in slots):
            raise ValueError(f"slots must be distinct and below {self.num_slots}, got {slots}")
        for slot, position in zip(slots, positions, strict=True):
            if not 0 <= position <= self.max_length - num_tokens:
                raise ValueError(
                    f"{num_tokens} tokens from position {position} on do not fit in slot {slot}, "
                    f"which holds {self.max_length}"
                )
        for slot, position in zip(slots, positions, strict=True):
            self._forget(slot, position)
            self._written[slot] = position + num_tokens
        return CacheWindow(self, slots, positions, num_tokens)

    def _forget(self, slot: int, position: int) -> None:
        # Masked positions get weight 0, but 0 * NaN is NaN: what a failed sequence left must be cleared.
        self.keys[:, slot, :, position : self._written[slot]] = 0
        self.values[:, slot, :, position : self._written[slot]] = 0


class CacheWindow:
    """The view of a cache during one step: where the rows write, and what they attend to.

    Attributes:
        positions: The position of each new token, [B, T].
        length: Tokens of the longest row, including those of this step.
        mask: Attention mask, bool [B, 1, T, length]; None if `attend` needs none (every row starts at 0, or single
            tokens at one common position).
    """

    def __init__(self, cache: KVCache, slots: list[int], starts: list[int], num_tokens: int) -> None:
        device = cache.keys.device
        self._cache = cache
        self._slots = torch.tensor(slots, device=device)
        # Consecutive slots are read through a view; others have to be gathered.
        consecutive = slots == list(range(slots[0], slots[0] + len(slots)))
        self._rows = slice(slots[0], slots[0] + len(slots)) if consecutive else self._slots
        self.positions = torch.tensor(starts, device=device).unsqueeze(-1) + torch.arange(num_tokens, device=device)
        self.length = max(starts) + num_tokens
        self.mask: Tensor | None = None
        if any(starts) and not (num_tokens == 1 and len(set(starts)) == 1):
            self.mask = (torch.arange(self.length, device=device) <= self.positions.unsqueeze(-1)).unsqueeze(1)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values [B, num_kv_heads, T, head_dim], and return all of the rows.

        Returns:
            Keys and values, [B, num_kv_heads, length, head_dim].
        """
        held_keys, held_values = self._cache.keys[layer], self._cache.values[layer]
        where = (self._slots.unsqueeze(-1), slice(None), self.positions)
        held_keys[where] = keys.transpose(1, 2)
        held_values[where] = values.transpose(1, 2)
        return held_keys[self._rows, :, : self.length], held_values[self._rows, :, : self.length]
