"""What `train` reports when a job fails."""

import pytest
import torch

from trainer.commands.train import train
from trainer.errors import TrainerError
from trainer.settings.train import TrainSettings


def test_a_gpu_without_memory_left_names_the_remedy(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: TrainSettings) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 6 GiB."
        )

    monkeypatch.setattr("trainer.training.trainer.train", full)
    expected = r"lower --batch-size and --total-batch-size 4; .* stay \(CUDA out of memory\)"
    with pytest.raises(TrainerError, match=expected):
        train(settings=settings)
