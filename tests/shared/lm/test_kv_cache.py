import pytest
import torch

from shared.lm import KVCache


def test_memory_is_what_the_formula_says(make_config):
    config = make_config()
    cache = KVCache(config, 3, 10, dtype=torch.bfloat16)
    assert cache.keys.shape == (2, 3, 2, 10, 12)
    assert cache.num_bytes == 2 * (2 * 3 * 2 * 10 * 12) * 2


@pytest.mark.parametrize(("num_slots", "max_length"), [(0, 8), (1, 0), (1, 513)])
def test_sizes_out_of_range_are_refused(make_config, num_slots, max_length):
    with pytest.raises(ValueError, match=f"got {num_slots} slots of {max_length} tokens"):
        KVCache(make_config(), num_slots, max_length)


@pytest.mark.parametrize(
    ("slots", "starts", "message"),
    [
        ([0], [6], "3 tokens from position 6 on do not fit in slot 0"),
        ([0], [-1], "position -1"),
        ([1, 1], [0, 0], r"distinct and below 2, got \[1, 1\]"),
        ([2], [0], r"below 2, got \[2\]"),
        ([-1], [0], r"got \[-1\]"),
        ([0, 1], [0, 6], "slot 1"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(make_model, slots, starts, message):
    model = make_model()
    cache = KVCache(model.config, 2, 8)
    model.hidden(torch.zeros(2, 8, dtype=torch.int64), cache)
    keys, values = cache.keys.clone(), cache.values.clone()
    with pytest.raises(ValueError, match=message):
        model.hidden(torch.zeros(len(slots), 3, dtype=torch.int64), cache, torch.tensor(slots), torch.tensor(starts))
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)
