"""What only experiments and training switch on: other architectures, dropout, attention within documents."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig

from shared.bpe import train_bpe
from shared.lm import (
    GenerationDefaults,
    KVCache,
    ModelConfig,
    ModelConfigError,
    ModelFolderError,
    SamplingParams,
    Transformer,
    generate,
    load_model_folder,
    save_model_folder,
)

SWITCHES = {
    "post-norm": {"norm": "post"},
    "no RMSNorm": {"norm": "none"},
    "no position encoding": {"position": "none"},
    "SiLU without a gate": {"activation": "silu"},
    "ReLU squared": {"activation": "relu2"},
    "logits capped": {"logit_soft_cap": 1.5},
    "value residuals": {"value_residual": True, "num_layers": 3},
    "post-norm, query/key norm": {"norm": "post", "qk_norm": True},
    "leaderboard": {"activation": "relu2", "logit_soft_cap": 15.0, "value_residual": True, "qk_norm": True},
    "all, untied": {"norm": "none", "position": "none", "activation": "silu", "tie_embeddings": False},
}
switches = pytest.mark.parametrize("changes", SWITCHES.values(), ids=SWITCHES.keys())


def random_tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(seed))


def straight_line(weights: dict[str, Tensor], config: ModelConfig, tokens: list[int]) -> Tensor:
    """The logits of one sequence, token by token and head by head in float64, from the formulas of the papers alone."""
    w = {name: weight.double() for name, weight in weights.items()}

    def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / torch.sqrt(sum(v * v for v in x) / len(x) + config.norm_eps) * gain

    def rotated(x: Tensor, position: int) -> Tensor:
        if config.position == "none":
            return x
        half = len(x) // 2
        angles = [position / config.rope.theta ** (2 * i / len(x)) for i in range(half)]
        cos, sin = (torch.tensor([f(a) for a in angles], dtype=torch.float64) for f in (math.cos, math.sin))
        return torch.cat([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])

    first_values: list[Tensor] = []

    def attention(inputs: list[Tensor], place: str) -> list[Tensor]:
        q, k, v = ([w[f"{place}.{letter}_proj.weight"] @ x for x in inputs] for letter in "qkv")
        if config.value_residual and not first_values:
            first_values.extend(v)
        elif config.value_residual:
            a, b = w[f"{place}.value_factors"]
            v = [a * first + b * own for first, own in zip(first_values, v, strict=True)]
        size, group = config.head_dim, config.num_heads // config.num_kv_heads
        outputs = []
        for t in range(len(inputs)):
            heads = []
            for head in range(config.num_heads):
                mine, theirs = (
                    slice(head * size, (head + 1) * size),
                    slice(head // group * size, (head // group + 1) * size),
                )
                query, keys = q[t][mine], [k[s][theirs] for s in range(t + 1)]
                if config.qk_norm:
                    query = rms_norm(query, w[f"{place}.q_norm.weight"])
                    keys = [rms_norm(key, w[f"{place}.k_norm.weight"]) for key in keys]
                query, keys = rotated(query, t), [rotated(key, s) for s, key in enumerate(keys)]
                scores = torch.stack([query @ key / math.sqrt(size) for key in keys]).exp()
                heads.append(sum(score * v[s][theirs] for s, score in enumerate(scores / scores.sum())))
            outputs.append(w[f"{place}.o_proj.weight"] @ torch.cat(heads))
        return outputs

    def feed_forward(x: Tensor, place: str) -> Tensor:
        up = w[f"{place}.up_proj.weight"] @ x
        if config.activation == "relu2":
            return w[f"{place}.down_proj.weight"] @ torch.stack([u * u if u > 0 else 0 * u for u in up])
        gate = up if config.activation == "silu" else w[f"{place}.gate_proj.weight"] @ x
        inner = gate / (1 + (-gate).exp())
        return w[f"{place}.down_proj.weight"] @ (inner if config.activation == "silu" else inner * up)

    stream = [w["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(config.num_layers):
        place = f"model.layers.{layer}"

        def norm(x: Tensor, name: str, place: str = place) -> Tensor:
            return rms_norm(x, w[f"{place}.{name}_layernorm.weight"])

        before = [norm(x, "input") for x in stream] if config.norm == "pre" else stream
        stream = [x + y for x, y in zip(stream, attention(before, f"{place}.self_attn"), strict=True)]
        if config.norm == "post":
            stream = [norm(x, "post_attention") for x in stream]
        before = [norm(x, "post_attention") for x in stream] if config.norm == "pre" else stream
        stream = [x + feed_forward(y, f"{place}.mlp") for x, y in zip(stream, before, strict=True)]
        if config.norm == "post":
            stream = [norm(x, "post_feedforward") for x in stream]
    if config.norm == "pre":
        stream = [rms_norm(x, w["model.norm.weight"]) for x in stream]
    head = w["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
    logits = torch.stack([head @ x for x in stream])
    cap = config.logit_soft_cap
    if cap:
        ratio = ((2 * logits / cap).exp() - 1) / ((2 * logits / cap).exp() + 1)  # the hyperbolic tangent
        logits = cap * ratio
    return logits


@pytest.mark.parametrize("changes", [{}, *SWITCHES.values()], ids=["usual", *SWITCHES])
def test_logits_equal_a_straight_line_reimplementation(make_model, changes):
    model = make_model(**changes).double()
    tokens = random_tokens(1, 7)
    expected = straight_line(model.state_dict(), model.config, tokens[0].tolist())
    # RoPE's angles and the norm are in float32 in the model.
    torch.testing.assert_close(model(tokens)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, *SWITCHES.values()], ids=["usual", *SWITCHES])
def test_gradients_equal_those_of_the_reimplementation(make_model, changes):
    model = make_model(**changes).double().requires_grad_(True)
    tokens = random_tokens(1, 6)
    straight = straight_line(dict(model.named_parameters()), model.config, tokens[0, :-1].tolist())
    found, expected = (
        torch.autograd.grad(F.cross_entropy(logits, tokens[0, 1:]), list(model.parameters()))
        for logits in (model(tokens[:, :-1])[0], straight)
    )
    for (name, _), gradient, true in zip(model.named_parameters(), found, expected, strict=True):
        torch.testing.assert_close(gradient, true, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@switches
def test_the_cached_path_equals_the_full_pass(make_model, changes):
    model = make_model(**changes)
    tokens = random_tokens(2, 9)
    cache = KVCache(model.config, 2, 9)
    first = model.hidden(tokens[:, :5], cache)
    rest = [model.hidden(tokens[:, t : t + 1], cache, positions=torch.tensor([t, t])) for t in range(5, 9)]
    torch.testing.assert_close(model.logits(torch.cat([first, *rest], 1)), model(tokens), rtol=1e-4, atol=1e-4)


@switches
def test_num_parameters_is_what_the_model_has(make_config, changes):
    config = make_config(**changes)
    assert config.num_parameters == sum(parameter.numel() for parameter in Transformer(config).parameters())


def test_without_positions_one_layer_sees_a_set_of_tokens(make_model):
    """The order can only come from the causal mask, and that tells one layer's last token nothing."""
    model = make_model(position="none", num_layers=1)
    tokens = random_tokens(1, 12)
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    torch.testing.assert_close(model(tokens)[:, -1], model(shuffled)[:, -1])
    assert not torch.allclose(make_model(num_layers=1)(tokens)[:, -1], make_model(num_layers=1)(shuffled)[:, -1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "layer"}, "norm must be one of pre, post, none, got 'layer'"),
        ({"activation": "relu"}, "activation must be one of swiglu, silu, relu2, got 'relu'"),
        ({"logit_soft_cap": -1.0}, r"logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got -1\.0"),
        ({"logit_soft_cap": math.nan}, "logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got nan"),
        ({"logit_soft_cap": math.inf}, "logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got inf"),
        ({"logit_soft_cap": 10**400}, "logit_soft_cap must be 0 or a number from 1e-30 to 1e30"),
        ({"logit_soft_cap": 5e-324}, "logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got 5e-324"),
        ({"logit_soft_cap": True}, "logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got True"),
        ({"value_residual": 1}, "value_residual must be true or false, got 1"),
        ({"value_residual": True, "num_layers": 1}, "value_residual needs num_layers of at least 2"),
        ({"value_residual": True, "attention_bias": "qkvo"}, "cannot be combined with value residuals"),
    ],
)
def test_a_config_knows_only_the_switches_there_are(make_config, changes, message):
    with pytest.raises(ModelConfigError, match=message):
        make_config(**changes)


def test_capped_logits_stay_within_the_cap_and_small_ones_hardly_change(make_model):
    free, capped = make_model(initializer_range=5.0), make_model(initializer_range=5.0, logit_soft_cap=4.0)
    tokens = random_tokens(1, 20)
    raw, bounded = free(tokens), capped(tokens)
    assert raw.abs().max() > 10
    assert bounded.abs().max() <= 4
    small = raw.abs() < 0.2
    torch.testing.assert_close(bounded[small], raw[small], rtol=2e-3, atol=0)


def test_a_tiny_cap_gives_no_nan(make_model):
    model = make_model(logit_soft_cap=1e-30)
    assert model(random_tokens(1, 5)).isfinite().all()


def test_value_factors_begin_at_a_half_in_all_layers_but_the_first(make_config):
    """Learnable-ResFormer (arXiv 2410.17897): both factors of V_n = a V_1 + b V_n start at 0.5."""
    model = Transformer(make_config(value_residual=True, num_layers=3))
    factors = [layer.self_attn.value_factors for layer in model.model.layers]
    assert factors[0] is None
    assert [factor.tolist() for factor in factors[1:]] == [[0.5, 0.5]] * 2


@pytest.mark.parametrize(
    "switch", [{"activation": "relu2"}, {"value_residual": True}, {"logit_soft_cap": 30.0}], ids=str
)
def test_under_autocast_products_stay_in_bfloat16(make_model, switch):
    """Nothing widens what goes into the projections, and logits stay near those in float32."""
    model, tokens = make_model(**switch), random_tokens(2, 16)
    widths = []
    for name, module in model.named_modules():
        if name.endswith(("down_proj", "o_proj")):
            module.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].dtype))
    exact = model(tokens)
    widths.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(tokens)
    assert set(widths) == {torch.bfloat16}
    assert (rounded - exact).abs().mean() < 0.03 * exact.abs().mean() + 0.01


@switches
def test_a_research_config_reads_back_equal_and_transformers_refuses_it(make_config, changes, tmp_path):
    config = make_config(**changes)
    assert ModelConfig.from_hf(config.to_hf()) == config
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    with pytest.raises(ValueError, match="ownlm_research"):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: None, "must have the keys qk_norm, norm, position, activation"),
        (lambda _: "post", "must be an object, got 'post'"),
        (lambda written: {"norm": written["norm"]}, "must have the keys"),
        (lambda written: {**written, "more": 1}, "must have the keys"),
        (lambda written: {**written, "qk_norm": 1}, "qk_norm true or false"),
        (lambda written: {**written, "norm": "layer"}, "norm must be one of pre, post, none, got 'layer'"),
        (lambda written: {**written, "position": []}, r"position must be one of rope, none, got \[\]"),
        (
            lambda written: {**written, "logit_soft_cap": "30"},
            "logit_soft_cap must be 0 or a number from 1e-30 to 1e30, got '30'",
        ),
        (lambda written: {**written, "value_residual": 1}, "value_residual must be true or false, got 1"),
    ],
)
def test_a_damaged_research_config_is_refused(make_config, damage, message):
    written = make_config(norm="post").to_hf()
    with pytest.raises(ModelConfigError, match=message):
        ModelConfig.from_hf({**written, "ownlm_research": damage(written["ownlm_research"])})


@pytest.fixture
def research_folder(make_model, tmp_path):
    tokenizer = train_bpe(["Once upon a time there was a fox."], 270, special_tokens=["<|endoftext|>"]).tokenizer
    model = make_model(norm="post", activation="silu", vocab_size=tokenizer.vocab_size)
    save_model_folder(
        tmp_path / "model", model=model, tokenizer=tokenizer, generation=GenerationDefaults(), provenance={}
    )
    return tmp_path / "model", model


def test_a_research_folder_opens_only_where_it_is_asked_for(research_folder):
    path, model = research_folder
    with pytest.raises(
        ModelFolderError, match=r"research checkpoint \(post-norm, SiLU without a gate\), which only the"
    ):
        load_model_folder(path)
    opened = load_model_folder(path, research=True)
    assert opened.config == model.config
    torch.testing.assert_close(opened.model.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_folders_of_earlier_releases_have_no_keys_for_later_switches(make_config):
    """And a model that does not use these is written without them, so that earlier releases open it."""
    written = make_config(norm="post").to_hf()
    assert set(written["ownlm_research"]) == {"qk_norm", "norm", "position", "activation"}
    config = ModelConfig.from_hf(written)
    assert (config.logit_soft_cap, config.value_residual) == (0.0, False)
    assert written["hidden_act"] == "silu"
    assert "hidden_act" not in make_config(activation="relu2").to_hf()


def test_usual_models_are_no_research_models(make_config):
    for changes in ({}, {"qk_norm": True}, {"tie_embeddings": False}):
        assert make_config(**changes).research_features == ()
        assert "ownlm_research" not in make_config(**changes).to_hf()


def test_dropout_is_reproducible_and_for_training_alone(make_model):
    """B86: evaluation, samples and the cached path never see it."""
    model, tokens = make_model(), random_tokens(2, 16)
    exact = model(tokens)
    model.set_dropout(0.5)
    assert torch.equal(model(tokens), exact)
    ids = list(generate(model, [1, 2, 3], SamplingParams(seed=0), max_tokens=8))
    model.train()
    assert list(generate(model, [1, 2, 3], SamplingParams(seed=0), max_tokens=8)) == ids
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(model(tokens))
    assert torch.equal(results[0], results[1])
    assert not torch.allclose(results[0], results[2])
    model.set_dropout(0.0)
    assert torch.equal(model(tokens), exact)


def test_dropout_is_in_its_three_places(make_model):
    """With the weights that follow a place set to 0, only that place can make two passes differ."""

    def differ(model: Transformer) -> bool:
        model.train().set_dropout(0.5)
        tokens = random_tokens(1, 16)
        return not torch.equal(model(tokens), model(tokens))

    def silent(*silenced: str) -> Transformer:
        model = make_model(num_layers=1)
        for name, weight in model.named_parameters():
            if name.endswith(silenced):
                weight.zero_()
        return model

    assert differ(silent("o_proj.weight", "down_proj.weight"))  # embeddings
    model = silent("o_proj.weight", "down_proj.weight")
    model.model.register_forward_pre_hook(lambda module, _: setattr(module, "dropout", 0.0))
    assert not differ(model)
    for silenced in ("o_proj.weight", "down_proj.weight"):  # the sum of a block, from one part of it
        model = silent(silenced)
        model.model.register_forward_pre_hook(lambda module, _: setattr(module, "dropout", 0.0))
        model.model.layers[0].self_attn.register_forward_pre_hook(lambda module, _: setattr(module, "dropout", 0.0))
        assert differ(model)
    model = silent("down_proj.weight")  # attention weights
    model.model.register_forward_pre_hook(lambda module, _: setattr(module, "dropout", 0.0))
    model.model.layers[0].register_forward_pre_hook(lambda module, _: setattr(module, "dropout", 0.0))
    assert differ(model)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"position": "none"}], ids=str)
def test_packed_documents_have_the_logits_that_they_have_alone(make_model, changes):
    """Positions go on through the window, but RoPE is relative: a document does not know where it begins."""
    model = make_model(**changes)
    documents = [random_tokens(1, length, seed=length).clamp(1) for length in (5, 1, 30, 11)]
    documents[0][0, 0] = 7  # the window begins within a document
    for document in documents[1:]:
        document[0, 0] = 0
    alone = torch.cat([model(document) for document in documents], 1)
    packed = torch.cat(documents, 1)
    seen = model(packed)
    model.document_start = 0
    torch.testing.assert_close(model(packed), alone, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(seen, alone, rtol=1e-2, atol=1e-2)


def test_documents_get_no_gradient_from_each_other(make_model):
    model = make_model().requires_grad_(True)
    model.document_start = 0
    embedded = []
    model.model.embed_tokens.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    tokens = random_tokens(1, 10).clamp(1)
    tokens[0, 4] = 0
    logits = model(tokens)[0, 6]
    (gradient,) = torch.autograd.grad(logits.sum(), embedded[0])
    reached = gradient.abs().sum(-1)[0] > 0
    assert reached.tolist() == [False] * 4 + [True] * 3 + [False] * 3
