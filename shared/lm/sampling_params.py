"""How to draw tokens: the parameters, and what they may be."""

from dataclasses import dataclass

from shared.lm.errors import SamplingError
from shared.system.errors import shown

NO_TOKEN = -1
"""What is drawn for a row whose logits hold no number to draw by."""

LOWEST_LOGPROB = -9999.0
"""What log-probabilities are reported as at least, as OpenAI's API has it: JSON knows no infinity."""

TOP_P_SLACK = 1e-9
"""The share of the mass by which top_p may be missed: the rounding of a sum in some order or other decides nothing."""

_GREEDY_BELOW = 1e-5
_MIN_BIAS, _MAX_BIAS = -100.0, 100.0  # OpenAI's


@dataclass(frozen=True)
class SamplingParams:
    """How to draw tokens.

    Attributes:
        temperature: 0 to 100. Logits are divided by it; 0 and all below 1e-5 take the likeliest token.
        top_p: 0 to 1. Keeps the likeliest tokens until their sum reaches it, the one that crosses included; 1 keeps
            all, 0 the likeliest alone.
        top_k: Keeps the k likeliest tokens; 0 or -1 keeps all, and so does a k beyond the vocabulary.
        min_p: 0 to 1. Keeps tokens at least this times as likely as the likeliest one; 0 keeps all.
        repetition_penalty: Above 0, to 10. Divides positive and multiplies negative logits of tokens in the prompt or
            the output (Keskar et al. 2019, arXiv 1909.05858); 1 changes nothing.
        presence_penalty: -2 to 2. Subtracted once from the logits of tokens in the output.
        frequency_penalty: -2 to 2. Subtracted from a token's logit once for each time that it is in the output.
        logit_bias: Pairs of an id and what is added to its logit before anything else, -100 to 100.
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
                raise SamplingError(f"{name} must be a number from {low:g} to {high:g}, got {shown(value)}")
        if self.repetition_penalty == 0:
            raise SamplingError(f"repetition_penalty must be above 0, got {self.repetition_penalty!r}")
        if type(self.top_k) is not int or self.top_k < -1:
            raise SamplingError(f"top_k must be a whole number of at least -1, got {shown(self.top_k)}")
        for token, bias in self.logit_bias:
            if not _MIN_BIAS <= bias <= _MAX_BIAS:
                raise SamplingError(f"logit_bias must be from {_MIN_BIAS:g} to {_MAX_BIAS:g}, got {bias!r} for {token}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise SamplingError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < _GREEDY_BELOW or self.top_p == 0 or self.top_k == 1


_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
