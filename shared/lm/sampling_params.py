"""Sampling parameters and their ranges."""

from dataclasses import dataclass

from shared.lm.errors import SamplingError
from shared.system.errors import short_repr

NO_TOKEN = -1
"""The result for a sequence from whose logits no token can be sampled: NaN, +inf, or nothing finite."""

LOWEST_LOGPROB = -9999.0
"""The lower bound of reported log-probabilities, as in OpenAI's API: JSON has no infinity."""

TOP_P_SLACK = 1e-9
"""Relative tolerance of top_p, so that the rounding of a sum, in whatever order, has no effect."""

_GREEDY_BELOW = 1e-5
_MIN_BIAS, _MAX_BIAS = -100.0, 100.0  # OpenAI's


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one sequence.

    Attributes:
        temperature: 0 to 100. Logits are divided by it; below 1e-5, sampling is greedy.
        top_p: 0 to 1. Keeps the most likely tokens until their total probability reaches it, including the last one; 1
            keeps all, 0 only the most likely.
        top_k: Keeps the k most likely tokens; 0, -1 or a k beyond the vocabulary keeps all.
        min_p: 0 to 1. Keeps tokens with at least this fraction of the highest probability; 0 keeps all.
        repetition_penalty: Above 0, to 10. Divides positive and multiplies negative logits of tokens in the prompt or
            the output (Keskar et al. 2019, arXiv 1909.05858); 1 changes nothing.
        presence_penalty: -2 to 2. Subtracted once from the logits of tokens in the output.
        frequency_penalty: -2 to 2. Subtracted from a token's logit for each occurrence in the output.
        logit_bias: Pairs of an id and a bias, -100 to 100, that is added to its logit before anything else.
        seed: 0 to 2**63 - 1. With equal logits, the same seed gives the same tokens.

    Raises:
        SamplingError: Names the field, its limits and the value.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise SamplingError(f"{name} must be a number from {low:g} to {high:g}, got {short_repr(value)}")
        if self.repetition_penalty == 0:
            raise SamplingError(f"repetition_penalty must be above 0, got {self.repetition_penalty!r}")
        if type(self.top_k) is not int or self.top_k < -1:
            raise SamplingError(f"top_k must be a whole number of at least -1, got {short_repr(self.top_k)}")
        for token, bias in self.logit_bias:
            if not _MIN_BIAS <= bias <= _MAX_BIAS:
                raise SamplingError(f"logit_bias must be from {_MIN_BIAS:g} to {_MAX_BIAS:g}, got {bias!r} for {token}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise SamplingError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature < _GREEDY_BELOW or self.top_p == 0 or self.top_k == 1


_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
