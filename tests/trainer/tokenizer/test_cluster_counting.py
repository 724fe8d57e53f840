"""How a text is divided among the processors of a cluster. Runs on one: test_train_on_ray.py."""

import pytest

from trainer.tokenizer.cluster_counting import part_size


@pytest.mark.parametrize("processors", [2, 16, 512])
@pytest.mark.parametrize("total", [300 << 20, 1100 << 20, 10**10, 10**12])
def test_each_processor_has_as_many_tasks(total: int, processors: int) -> None:
    size = part_size(total, processors)
    tasks = -(-total // size)
    if size == 4 << 20:  # too little text for that
        assert tasks < 4 * processors
    else:
        assert -tasks % processors <= processors // 50, "few processors are idle in the last round of tasks"
        assert size <= 128 << 20
