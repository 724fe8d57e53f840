"""The angles of positions, as the kernels read them."""

import numpy as np

from shared.lm import ModelConfig
from shared.lm.rope_config import rope_frequencies

_POSITIONS_AT_ONCE = 256


class Rotation:
    """Cosines and sines of the angles at each position, computed when a sequence first gets there.

    A context may be far longer than any request: memory that was never written to is not yet allocated to the process.

    Attributes:
        values: Of each position, head_dim / 2 cosines and as many sines; what lies beyond `reach` has no meaning.
    """

    def __init__(self, config: ModelConfig, num_positions: int) -> None:
        self.values = np.empty(num_positions * config.head_dim, np.float32)
        self._table = self.values.reshape(num_positions, config.head_dim)
        self._frequencies = rope_frequencies(config.rope, config.head_dim)
        self._magnitude = config.rope.magnitude
        self._known = 0

    def reach(self, position: int) -> None:
        """Make sure of the angles up to a position."""
        while self._known <= position:
            some = self._table[self._known : self._known + _POSITIONS_AT_ONCE]
            positions = np.arange(self._known, self._known + len(some), dtype=np.float32)
            # Angles are rounded to float32 as they are everywhere else.
            angles = (positions[:, None] * self._frequencies).astype(np.float64)
            some[:] = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * self._magnitude
            self._known += len(some)
