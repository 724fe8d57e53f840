import pytest
import torch

from shared.lm import Llama3Scaling, RopeConfig
from shared.lm.rope import RotaryEmbedding
from shared.lm.rope_config import rope_frequencies


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        # B94: computed by hand from the published rule, one value per band.
        (8.0, [1.0, 0.037606, 0.000524846, 6.64787e-06]),
        (32.0, [1.0, 0.037606, 0.000429558, 1.66197e-06]),
    ],
)
def test_llama3_scaling_gives_the_published_frequencies(factor, expected):
    rope = RopeConfig(500_000.0, Llama3Scaling(factor, 1.0, 4.0, 8192))
    torch.testing.assert_close(torch.from_numpy(rope_frequencies(rope, 8)), torch.tensor(expected), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000.0])
def test_frequencies_follow_theta(theta):
    expected = torch.tensor([theta ** (-2 * pair / 8) for pair in range(4)])
    torch.testing.assert_close(torch.from_numpy(rope_frequencies(RopeConfig(theta), 8)), expected)


def test_a_cast_model_keeps_exact_frequencies():
    rotary = RotaryEmbedding(RopeConfig(), 8).to(torch.bfloat16)
    assert torch.equal(rotary.frequencies, torch.from_numpy(rope_frequencies(RopeConfig(), 8)))
