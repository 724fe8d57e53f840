import pytest

from shared.lm.weight_shapes import weight_shapes


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": True},
        {"tie_embeddings": False},
        {"qk_norm": True, "num_layers": 3},
        {"norm": "post"},
        {"norm": "none", "tie_embeddings": False},
        {"activation": "silu", "position": "none"},
        {"activation": "relu2", "value_residual": True, "num_layers": 3},
    ],
    ids=str,
)
def test_shapes_are_those_of_the_model(make_model, changes):
    model = make_model(**changes)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert weight_shapes(model.config) == expected
