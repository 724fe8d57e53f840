"""Sampling the next tokens of all sequences at once, on the device that the model runs on.

`shared.lm.sampling`, slow and in float64, is the reference: a sampler gives the same tokens.
"""

from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.sampler.protocol import Sampler

__all__ = ["CpuSampler", "Sampler"]
