from typing import Any, Literal

import pytest
import torch

from trainer.components.model import apply_recipe, model_config, new_model
from trainer.errors import UsageError
from trainer.settings.train import ModelSettings, OptimizationSettings


@pytest.mark.parametrize("activation", ["silu", "relu2"])
@pytest.mark.parametrize("sizes", [{}, {"d_ff": 1344, "d_model": 512}, {"d_model": 320}], ids=str)
def test_two_matrices_have_as_many_parameters_as_swiglus_three(
    sizes: dict[str, Any], activation: Literal["silu", "relu2"]
) -> None:
    gated = model_config(ModelSettings(**sizes), 300)
    ungated = model_config(ModelSettings(**sizes, activation=activation), 300)
    assert ungated.num_parameters == gated.num_parameters
    assert ungated.d_ff == gated.d_ff * 3 // 2


def test_an_odd_width_is_matched_to_less_than_a_row() -> None:
    gated = model_config(ModelSettings(d_ff=99, num_layers=1), 300)
    ungated = model_config(ModelSettings(d_ff=99, num_layers=1, activation="silu"), 300)
    assert 0 <= gated.num_parameters - ungated.num_parameters <= 256


def test_the_switches_reach_the_model() -> None:
    settings = ModelSettings(
        norm="post",
        position="none",
        activation="silu",
        qk_norm=True,
        tie_embeddings=False,
        logit_soft_cap=30.0,
        value_residual=True,
    )
    config = model_config(settings, 300)
    assert (config.logit_soft_cap, config.value_residual) == (30.0, True)
    assert (config.norm, config.position, config.activation) == ("post", "none", "silu")
    assert (config.qk_norm, config.tie_embeddings) == (True, False)


def test_every_switch_can_be_trained_from_mimetic_weights() -> None:
    """Mimetic initialization looks for attention only, which is in all of them."""
    for switch in (
        *({"norm": "none"}, {"norm": "post"}, {"position": "none"}, {"activation": "silu"}, {"activation": "relu2"}),
        *({"logit_soft_cap": 30.0}, {"value_residual": True}),
    ):
        settings = ModelSettings(**switch, d_model=32, num_layers=2, initialization="mimetic")  # type: ignore[arg-type]
        model = new_model(settings, 50, seed=0)
        model(torch.arange(6)[None]).logsumexp(-1).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_value_residuals_need_a_second_layer() -> None:
    with pytest.raises(UsageError, match="--value-residual needs --num-layers of at least 2"):
        model_config(ModelSettings(num_layers=1, value_residual=True), 300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero_outputs": "blocks"}, "--zero-outputs blocks .* mimetic .* add --initialization normal"),
        ({"zero_outputs": "all", "tie_embeddings": False}, "--zero-outputs all .* mimetic"),
        ({"zero_outputs": "head"}, "--zero-outputs head would set the embedding to zero.*add --no-tie-embeddings"),
        ({"zero_outputs": "all", "initialization": "normal"}, "--zero-outputs all would set the embedding to zero"),
        ({"logit_soft_cap": -1.0}, "--logit-soft-cap must be a finite number of at least 0"),
        ({"logit_soft_cap": float("inf")}, "--logit-soft-cap must be a finite number"),
    ],
)
def test_switches_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ModelSettings(**options)


def test_a_recipe_sets_what_the_config_does_not_hold() -> None:
    model = new_model(ModelSettings(d_model=32, num_layers=1), 50, seed=0)
    apply_recipe(model, OptimizationSettings(dropout=0.25, document_mask=True), 7)
    assert model.document_start == 7
    assert [model.model.dropout, *(layer.dropout for layer in model.model.layers)] == [0.25, 0.25]
    apply_recipe(model, OptimizationSettings(), 7)
    assert model.document_start is None
    assert model.model.layers[0].self_attn.dropout == 0


def test_documents_cannot_be_told_apart_without_an_end_of_text_id() -> None:
    model = new_model(ModelSettings(d_model=32, num_layers=1), 50, seed=0)
    with pytest.raises(UsageError, match="--document-mask needs an end-of-text id"):
        apply_recipe(model, OptimizationSettings(document_mask=True), None)
