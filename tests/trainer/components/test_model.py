from typing import Any

import pytest
import torch

from trainer.components.model import apply_recipe, model_config, new_model
from trainer.errors import UsageError
from trainer.settings.train import ModelSettings, OptimizationSettings


@pytest.mark.parametrize("sizes", [{}, {"d_ff": 1344, "d_model": 512}, {"d_model": 320}], ids=str)
def test_silu_has_as_many_parameters_as_swiglu(sizes: dict[str, Any]) -> None:
    gated = model_config(ModelSettings(**sizes), 300)
    ungated = model_config(ModelSettings(**sizes, activation="silu"), 300)
    assert ungated.num_parameters == gated.num_parameters
    assert ungated.d_ff == gated.d_ff * 3 // 2


def test_an_odd_width_is_matched_to_less_than_a_row() -> None:
    gated = model_config(ModelSettings(d_ff=99, num_layers=1), 300)
    ungated = model_config(ModelSettings(d_ff=99, num_layers=1, activation="silu"), 300)
    assert 0 <= gated.num_parameters - ungated.num_parameters <= 256


def test_the_switches_reach_the_model() -> None:
    settings = ModelSettings(norm="post", position="none", activation="silu", qk_norm=True, tie_embeddings=False)
    config = model_config(settings, 300)
    assert (config.norm, config.position, config.activation) == ("post", "none", "silu")
    assert (config.qk_norm, config.tie_embeddings) == (True, False)


def test_every_switch_can_be_trained_from_mimetic_weights() -> None:
    """Mimetic initialization looks for attention only, which is in all of them."""
    for switch in ({"norm": "none"}, {"norm": "post"}, {"position": "none"}, {"activation": "silu"}):
        settings = ModelSettings(**switch, d_model=32, num_layers=1, initialization="mimetic")  # type: ignore[arg-type]
        model = new_model(settings, 50, seed=0)
        model(torch.arange(6)[None]).logsumexp(-1).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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
    with pytest.raises(UsageError, match="document_mask needs an end-of-text id"):
        apply_recipe(model, OptimizationSettings(document_mask=True), None)
