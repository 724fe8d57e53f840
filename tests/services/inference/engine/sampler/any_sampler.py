"""Both samplers behind one face."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from services.inference.engine.sampler import CpuSampler
from services.inference.engine.sampler.torch_sampler import TorchSampler
from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs
from shared.lm import SamplingParams
from tests.services.inference.engine.triton_tests import DEVICE, NEED_TRITON

MAX_ROWS = 8
KINDS = ["cpu", "torch", pytest.param("kernel", marks=NEED_TRITON)]


class AnySampler:
    """Either sampler, on NumPy arrays."""

    def __init__(
        self,
        kind: str,
        vocab_size: int,
        *,
        valid: np.ndarray | None = None,
        num_threads: int = 1,
        num_slots: int = MAX_ROWS,
    ) -> None:
        self._torch = kind != "cpu"
        self._sampler: Any
        if self._torch:
            mask = None if valid is None else torch.from_numpy(valid)
            self._sampler = TorchSampler(
                vocab_size,
                num_slots,
                DEVICE if kind == "kernel" else "cpu",
                valid_tokens=mask,
                has_kernel=kind == "kernel",
            )
        else:
            self._sampler = CpuSampler(vocab_size, num_slots, valid_tokens=valid, num_threads=num_threads)
        self.open, self.close = self._sampler.open, self._sampler.close

    def sample(self, logits: np.ndarray, slots: Sequence[int]) -> list[SampledToken]:
        with np.errstate(all="ignore"):  # of Triton's interpreter
            return self._sampler.sample(self._as_expected(logits), slots)

    def score(self, logits: np.ndarray, targets: Sequence[int], count: int) -> list[TokenLogprobs]:
        return self._sampler.score(self._as_expected(logits), targets, count)

    def _as_expected(self, logits: np.ndarray) -> Any:
        return torch.from_numpy(logits).to(self._sampler.device) if self._torch else logits

    def sample_some(self, logits: Sequence[float], *, steps: int = 1, **values: Any) -> list[int]:
        """Sample some ids one after another from the same logits."""
        self.open(0, request(**values))
        array = np.array([logits], np.float32)
        return [self.sample(array, [0])[0].token for _ in range(steps)]


def request(
    prompt: Sequence[int] = (0,),
    *,
    stop_ids: Sequence[int] = (),
    min_tokens: int = 0,
    num_logprobs: int | None = None,
    **values: Any,
) -> SequenceRequest:
    return SequenceRequest(tuple(prompt), SamplingParams(**values), 100, frozenset(stop_ids), num_logprobs, min_tokens)
