"""Angles of positions, computed when they are reached."""

import dataclasses

import numpy as np
import pytest
import torch

from services.inference.engine.runner.cpu.rotation import Rotation
from shared.lm import RopeConfig, YarnScaling
from shared.lm.rope import RotaryEmbedding
from tests.services.inference.engine.runner.cpu.conftest import CONFIGS

HEAD_DIM = 18


@pytest.mark.case("D21")
@pytest.mark.parametrize("rope", [RopeConfig(), RopeConfig(10_000.0, YarnScaling(4.0, 64))], ids=["plain", "yarn"])
def test_angles_are_those_of_the_model_in_torch_as_far_as_was_asked(rope: RopeConfig) -> None:
    rotation = Rotation(dataclasses.replace(CONFIGS["odd widths"], rope=rope), 1000)
    rotation.values[:] = np.nan
    for position, known in [(0, 256), (255, 256), (256, 512), (700, 768), (999, 1000)]:
        rotation.reach(position)
        table = rotation.values.reshape(1000, HEAD_DIM)
        expected = torch.cat(RotaryEmbedding(rope, HEAD_DIM)(torch.arange(known)), dim=1)
        np.testing.assert_allclose(table[:known], expected.numpy(), rtol=0, atol=1e-6)
        assert np.isnan(table[known:]).all()
