"""Training on a real GPU."""

from collections.abc import Callable
from typing import Any

import pytest

from trainer.runs.results import read_run
from trainer.settings.train import TrainSettings
from trainer.training.trainer import train

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_deterministic_run_resumes_to_the_bit(
    settings: TrainSettings, change: Callable[..., Any], dtype: str
) -> None:
    runs = {}
    for name, steps in (("whole", [None]), ("parts", [5, None])):
        run = change(settings, device="cuda", dtype=dtype, deterministic=True, output=settings.output / name)
        for part, stop_after in enumerate(steps):
            train(change(run, stop_after=stop_after, resume=part > 0))
        runs[name] = (run.output / "model" / "model.safetensors").read_bytes()
        assert len(read_run(run.output).curve("loss")) == 10
    assert runs["whole"] == runs["parts"]
