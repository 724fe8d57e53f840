"""Drawing the next tokens of all rows at once, on the device that the model runs on.

What a draw means is said by `shared.lm.sampling`, the slow reference in float64; a sampler gives the same tokens.
"""

from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.sampler.protocol import Sampler

__all__ = ["CpuSampler", "Sampler"]
