from typing import Any

import pytest

from trainer.components.model import model_config
from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.recipes.scaling import derive
from trainer.settings.train import ModelSettings, OptimizationSettings, TrainSettings


def values(vocab_size: int = 50_257, data_tokens: int | None = None, **given: Any) -> dict[str, Any]:
    return {one.name: one.value for one in derive(given, vocab_size=vocab_size, data_tokens=data_tokens)}


def test_a_depth_of_12_by_hand() -> None:
    """Equations 1 and 2 of DeepSeek LLM (arXiv 2401.02954), section 3.1, and 20 tokens a parameter, by a calculator.

    123,551,232 parameters: 50,257 * 768 of the embedding, 12 blocks of 4 * 768^2 + 3 * 768 * 2,048 + 2 * 768, and 768.
    """
    derived = values(depth=12)
    assert (derived["num_layers"], derived["d_model"]) == (12, 768)
    flops = 12 * (72 * 768**2 + 12 * 768 * 256)
    assert flops == 537_919_488
    compute = flops * 20 * 123_551_232  # 1.329e18
    assert compute == pytest.approx(1.3292e18, rel=1e-3)
    assert derived["learning_rate"] == 0.0017  # 0.3118 * 1.3292e18^-0.125 = 0.001695
    assert derived["total_batch_size"] == 1024  # 0.292 * 1.3292e18^0.3271 = 247,500 tokens, 967 windows
    assert derived["batch_size"] == 32
    assert derived["max_steps"] == round(20 * 123_551_232 / (1024 * 256))
    assert derived["warmup_steps"] == 189  # 2 % of 9,426


def test_what_is_given_wins_and_the_rest_follows_from_it() -> None:
    derived = values(depth=12, d_model=512, batch_size=24, learning_rate=1e-4, context_length=1024)
    assert derived["total_batch_size"] % 24 == 0
    assert not {"d_model", "batch_size", "learning_rate"} & set(derived)
    # The narrower model has 51,518,976 parameters, and steps follow from these.
    tokens = derived["max_steps"] * derived["total_batch_size"] * 1024
    config = model_config(ModelSettings(num_layers=12, d_model=512), 50_257)
    assert tokens == pytest.approx(20 * config.num_parameters, rel=0.01)


def test_a_number_of_steps_decides_batch_and_rate() -> None:
    """The batch is best for the FLOPs that this many steps of it make."""
    derived = values(depth=4, max_steps=100)
    flops = 4 * (72 * 256**2 + 12 * 256 * 256) * 100 * derived["total_batch_size"] * 256
    best = 0.2920 * flops**0.3271
    assert best / 2**0.5 <= derived["total_batch_size"] * 256 <= best * 2**0.5
    assert "max_steps" not in derived


def test_little_text_is_repeated_at_most_four_times() -> None:
    derived = values(depth=4, data_tokens=1_000_000)
    assert derived["max_steps"] * derived["total_batch_size"] * 256 == pytest.approx(4_000_000, rel=0.01)


def test_windows_of_a_pass_divide_those_of_a_step() -> None:
    assert values(depth=4, total_batch_size=100)["batch_size"] == 25
    assert values(depth=4, total_batch_size=37)["batch_size"] == 1
    assert values(depth=4, batch_size=7)["total_batch_size"] % 7 == 0


def test_very_short_runs_do_not_get_a_rate_beyond_what_was_tried() -> None:
    assert values(depth=1, vocab_size=300)["learning_rate"] == 4e-3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give one of them"),
        ({"depth": 4, "preset": "cs336"}, "give one of them"),
        ({"depth": 0}, "--depth must be at least 1; got 0"),
        ({"depth": 4, "batch_size": 0}, "--batch-size must be at least 1; got 0"),
        ({"depth": 4, "max_steps": 0}, "--max-steps must be at least 1; got 0"),
        ({"depth": 4, "num_heads": 3}, "--d-model .256. must be a multiple of --num-heads .3."),
        ({"depth": 5000}, "--num-layers must be a whole number from 1 to 4096, got 5000"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        values(**given)


def test_a_settings_file_may_hold_the_scaling_preset(settings: TrainSettings) -> None:
    table = {"data": str(settings.data), "output": "run", "depth": 2, "learning_rate": 0.5}
    parsed = parse_train_settings(table, source="test")
    assert (parsed.model.num_layers, parsed.model.d_model) == (2, 128)
    assert parsed.optimization.learning_rate == 0.5
    assert parsed.optimization.max_steps != OptimizationSettings().max_steps
