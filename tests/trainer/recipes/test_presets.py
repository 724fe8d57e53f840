"""The presets build the published models, with the published training; our recipe on the same shape with `improved`."""

import dataclasses
import logging
from typing import Any, get_args

import pytest

from trainer.components.model import model_config
from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.recipes.presets import PRESETS
from trainer.recipes.scaling import derive, needs_vocabulary
from trainer.settings.model import PresetName
from trainer.settings.train import ModelSettings, OptimizationSettings, TrainSettings


def values(preset: str, vocab_size: int = 50_257, **given: Any) -> dict[str, Any]:
    table = {"preset": preset, **given}
    return {one.name: one.value for one in derive(table, vocab_size=vocab_size, data_tokens=None)}


def settings_of(preset: str, **given: Any) -> TrainSettings:
    return parse_train_settings({"data": "d", "output": "o", "preset": preset, **given}, source="test")


def test_the_presets_are_those_that_the_option_offers() -> None:
    assert set(get_args(PresetName)) == set(PRESETS)


@pytest.mark.parametrize(
    ("preset", "vocab_size", "parameters"),
    [
        # Counted by hand from the matrices: embeddings, and per layer attention, three of the feed-forward, two gains.
        ("cs336", 10_000, 2 * 10_000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1_344 + 2 * 512) + 512),
        ("gpt2-xl", 50_257, 2 * 50_257 * 1_600 + 48 * (4 * 1_600**2 + 3 * 1_600 * 6_400 + 2 * 1_600) + 1_600),
        ("gpt2-large", 50_257, 2 * 50_257 * 1_280 + 36 * (4 * 1_280**2 + 3 * 1_280 * 5_120 + 2 * 1_280) + 1_280),
        ("gpt2-medium", 50_257, 2 * 50_257 * 1_024 + 24 * (4 * 1_024**2 + 3 * 1_024 * 4_096 + 2 * 1_024) + 1_024),
        ("gpt2-small", 50_257, 2 * 50_257 * 768 + 12 * (4 * 768**2 + 3 * 768 * 3_072 + 2 * 768) + 768),
        ("stories260k", 512, 512 * 64 + 5 * (3 * 64**2 + 3 * 64 * 172 + 2 * 64) + 64),  # half the keys and values
        ("stories15m", 32_000, 32_000 * 288 + 6 * (4 * 288**2 + 3 * 288 * 768 + 2 * 288) + 288),
    ],
)
def test_presets_have_exactly_the_parameters_of_the_published_models(
    preset: str, vocab_size: int, parameters: int
) -> None:
    assert model_config(settings_of(preset).model, vocab_size).num_parameters == parameters


def test_the_published_totals() -> None:
    """CS336's own: write-ups of assignment 1 give 22,696,448 for section 7.2 and 2,127,057,600 for section 3.6."""
    assert model_config(settings_of("cs336").model, 10_000).num_parameters == 22_696_448
    assert model_config(settings_of("gpt2-xl").model, 50_257).num_parameters == 2_127_057_600


@pytest.mark.parametrize(
    ("preset", "vocab_size", "parameters"),
    [("stories42m", 32_000, 42e6), ("stories110m", 32_000, 110e6), ("smollm-135m", 49_152, 135e6)],
)
def test_other_sizes_are_those_of_their_names(preset: str, vocab_size: int, parameters: float) -> None:
    """As llama2.c's README and SmolLM's model card round them."""
    assert model_config(settings_of(preset).model, vocab_size).num_parameters == pytest.approx(parameters, rel=0.02)


def test_cs336_is_the_handouts_model_and_the_published_run() -> None:
    """Handout 1.0.2, sections 3.4.1, 4.4, 5.1 and 7.2; rate, warm-up, betas and decay of the published solution."""
    s = settings_of("cs336")
    m, o = s.model, s.optimization
    assert (m.d_model, m.d_ff, m.num_layers, m.num_heads, m.context_length) == (512, 1_344, 4, 16, 256)
    assert (m.rope_theta, m.qk_norm, m.tie_embeddings, m.initialization) == (10_000, False, False, "xavier")
    assert o.max_steps * s.tokens_per_step == 40_960_000
    assert (o.batch_size, s.total_batch_size, o.max_steps) == (32, 32, 5_000)
    assert (o.optimizer, o.learning_rate, o.betas, o.weight_decay) == ("adamw", 3e-3, (0.9, 0.999), 0.1)
    assert (o.schedule, o.warmup_steps, o.warmup_from_zero, o.min_learning_rate_ratio) == ("cosine", 250, True, 0)
    assert (o.clip_grad_norm, o.data_order, o.dropout) == (1.0, "uniform", 0.0)


def test_gpt2_xl_is_the_handouts_accounting_with_gpt3s_rates() -> None:
    """Sections 3.6 and 4.3 of the handout; table 2.1 of the paper on GPT-3 has 2e-4 at 1.3B and 6e-4 at 125M."""
    s = settings_of("gpt2-xl")
    assert (s.model.num_layers, s.model.d_model, s.model.num_heads, s.model.d_ff) == (48, 1_600, 25, 6_400)
    assert (s.optimization.max_steps, s.total_batch_size, s.model.context_length) == (400_000, 1_024, 1_024)
    assert s.optimization.warmup_steps == 375_000_000 // s.tokens_per_step
    rates = [settings_of(f"gpt2-{size}").optimization.learning_rate for size in ("small", "medium", "large", "xl")]
    assert rates == [6e-4, 3e-4, 2.5e-4, 2e-4]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # llama2.c: doc/stories260K.md; train.py; README, "brief training guide".
        ("stories260k", (128, 100_000, 1e-3, (0.9, 0.99), 0.01, 1_000, 0.05, "cosine")),
        ("stories15m", (512, 100_000, 5e-4, (0.9, 0.95), 0.1, 1_000, 0.0, "cosine")),
        ("stories110m", (128, 200_000, 4e-4, (0.9, 0.95), 0.1, 1_000, 0.1, "cosine")),
        # nanoGPT: config/train_shakespeare_char.py.
        ("nanogpt-char", (64, 5_000, 1e-3, (0.9, 0.99), 0.1, 100, 0.2, "cosine")),
        # SmolLM: config_smollm1_135M.yaml.
        ("smollm-135m", (512, 600_000, 3e-3, (0.9, 0.95), 0.01, 5_000, 0.0, "wsd")),
    ],
)
def test_other_presets_train_as_their_sources_do(preset: str, expected: tuple[Any, ...]) -> None:
    s = settings_of(preset)
    o = s.optimization
    found = (o.max_steps, o.learning_rate, o.betas, o.weight_decay, o.warmup_steps, o.dropout, o.schedule)
    assert (s.total_batch_size, *found) == expected
    assert (s.model.qk_norm, s.model.initialization, s.model.rope_theta) == (False, "normal", 10_000)


def test_smollm_decays_over_its_last_hundred_thousand_steps() -> None:
    o = settings_of("smollm-135m").optimization
    assert round(o.decay_share * o.max_steps) == 100_000


def test_what_a_source_leaves_out_is_derived() -> None:
    """The model card of TinyStories-33M has batch, rate and schedule, and no number of steps."""
    derived = derive({"preset": "tinystories-33m"}, vocab_size=50_257, data_tokens=None)
    by_name = {one.name: one for one in derived}
    assert (by_name["total_batch_size"].value, by_name["learning_rate"].value) == (1_280, 5e-4)
    assert (by_name["schedule"].value, by_name["warmup_steps"].value) == ("constant", 0)
    assert "Chinchilla" in by_name["max_steps"].reason
    assert needs_vocabulary({"preset": "tinystories-33m"})
    assert not needs_vocabulary({"preset": "tinystories-33m", "max_steps": 10})
    assert values("tinystories-33m", max_steps=10)["warmup_steps"] == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_improved_is_the_same_shape_with_our_recipe(preset: str) -> None:
    derived = values(preset, improved=True)
    shape = dict(PRESETS[preset].shape.settings)
    assert shape.items() <= derived.items()
    assert set(derived) - set(shape) == {"total_batch_size", "batch_size", "max_steps", "learning_rate", "warmup_steps"}
    model = ModelSettings(**shape)
    assert (model.qk_norm, model.initialization, model.rope_theta) == (True, "mimetic", 100_000)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("improved", [False, True])
def test_every_preset_is_a_valid_run(preset: str, improved: bool) -> None:
    derived = values(preset, improved=improved)
    for settings_class in (ModelSettings, OptimizationSettings):
        names = {item.name for item in dataclasses.fields(settings_class)}
        made = settings_class(**{name: value for name, value in derived.items() if name in names})
        if isinstance(made, ModelSettings):
            model_config(made, 50_257)


def test_what_is_given_wins_and_published_values_adapt_to_it() -> None:
    derived = values("cs336", learning_rate=1e-3, max_steps=1_000, batch_size=24, d_model=64, qk_norm=True)
    assert not {"learning_rate", "max_steps", "batch_size", "d_model", "qk_norm"} & set(derived)
    assert derived["warmup_steps"] == 50  # 250 of 5,000 steps
    assert derived["total_batch_size"] == 24  # 32 is no multiple of it
    assert derived["d_ff"] == 1_344
    assert values("cs336", max_steps=3)["warmup_steps"] == 0
    assert values("cs336", batch_size=16)["total_batch_size"] == 32
    assert values("cs336", total_batch_size=48)["batch_size"] == 24


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 4, "improved": True}, "--improved .* give --preset"),
        ({"improved": True}, "--improved .* give --preset"),
        ({"preset": "cs336", "max_steps": 0}, "--max-steps must be at least 1; got 0"),
        ({"preset": "cs336", "batch_size": 0}, "--batch-size must be at least 1; got 0"),
        ({"preset": "cs336", "total_batch_size": -1}, "--total-batch-size must be at least 1; got -1"),
        ({"preset": "cs336", "batch_size": 5, "total_batch_size": 32}, "so 30 or 35; got 32"),
        ({"preset": "cs336", "num_heads": 5}, "--d-model .512. must be a multiple of --num-heads .5."),
        ({"preset": "cs336", "momentum": 0.9}, "--momentum needs --optimizer sgd"),
        ({"preset": "gpt3"}, "gpt3"),
    ],
)
def test_what_cannot_be_is_refused(settings: TrainSettings, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_train_settings({"data": str(settings.data), "output": "o", **given}, source="test")


def test_the_log_names_each_source_once(caplog: pytest.LogCaptureFixture) -> None:
    from trainer.recipes.options import _log

    with caplog.at_level(logging.INFO):
        _log("--preset cs336", derive({"preset": "cs336"}, vocab_size=10_000, data_tokens=None))
    assert caplog.messages[0] == "Derived from --preset cs336:"
    lines = {line.strip() for line in caplog.messages[1:]}
    assert "initialization = xavier: CS336 assignment 1, version 1.0.2, section 3.4.1" in lines
    assert sum("learning_rate = 0.003" in line for line in lines) == 1
