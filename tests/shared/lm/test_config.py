import pytest
from transformers import LlamaConfig

from shared.lm import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    ModelConfigError,
    RopeConfig,
    Transformer,
    YarnScaling,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_absent_keys_take_the_defaults_of_llama_in_transformers():
    config = ModelConfig.from_hf({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"})
    assert config.num_kv_heads == 8  # B102: absent means as many as query heads
    assert config.head_dim == 8
    assert config.norm_eps == 1e-6
    assert config.rope == RopeConfig(theta=10_000.0, scaling=None)  # B93: absent means 10000
    assert not config.tie_embeddings
    assert not config.qk_norm
    absent = dict.fromkeys(["num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "rope_theta"])
    assert ModelConfig.from_hf({**LLAMA, **absent}) == config  # null means absent


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False},
        {"qk_norm": True},
        {"rope": RopeConfig(500_000.0)},
        {"rope": RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))},
        {"rope": RopeConfig(10_000.0, LinearScaling(2.0))},
        {"rope": RopeConfig(10_000.0, YarnScaling(4.0, 64))},
        {"rope": RopeConfig(10_000.0, YarnScaling(4.0, 64, 1.5, 16.0, 2.0, truncate=False))},
        {"attention_bias": "qkv"},
        {"attention_bias": "qkv", "d_model": 34, "head_dim": 8},
        {"attention_bias": "qkvo"},
        {"attention_bias": "qkvo", "qk_norm": True},
    ],
)
def test_what_is_written_reads_back_equal(make_config, changes):
    config = make_config(**changes)
    assert ModelConfig.from_hf(config.to_hf()) == config


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500_000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500_000.0}},
        {"rope_theta": 500_000, "rope_parameters": LLAMA3_SCALING, "rope_scaling": None},
        {"rope_theta": 500_000.0, "rope_scaling": {"type": "llama3", **LLAMA3_SCALING}},
    ],
)
def test_every_place_of_the_rope_settings_is_read(rope):
    assert ModelConfig.from_hf({**LLAMA, **rope}).rope == RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "olmo2"}, r'"model_type" must be one of .* got \'olmo2\''),
        ({"model_type": "starcoder2"}, r'"model_type" must be one of .* got \'starcoder2\''),
        ({"model_type": "mixtral"}, r'"model_type" must be one of .* got \'mixtral\''),
        ({"architectures": ["LlamaForSequenceClassification"]}, r'"architectures".*LlamaForSequenceClassification'),
        ({"architectures": ["Qwen3ForCausalLM"]}, '"architectures" must be'),
        ({"attention_bias": 1}, '"attention_bias" must be true or false, got 1'),
        ({"mlp_bias": True}, '"mlp_bias" is True'),
        ({"hidden_act": "gelu"}, "\"hidden_act\" is 'gelu'"),
        ({"sliding_window": 64}, '"sliding_window" is 64'),
        ({"use_sliding_window": True}, '"use_sliding_window" is True'),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "only 'full_attention' layers"),
        ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5'),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "never executed"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "\"rope_scaling\" has the type 'foo'"),  # B94
        ({"rope_parameters": {"rope_type": "foo"}}, "\"rope_parameters\" has the type 'foo'"),  # B94
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "\"rope_scaling\" has the type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "\"rope_parameters\" has the type 'longrope'"),
        ({"rope_parameters": {**LLAMA3_SCALING, "mscale": 1.0}}, "mscale"),
        ({"rope_scaling": {"type": "linear"}}, "has the type 'linear' but no \"factor\""),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor must be a number from 1 to 1e.06, got 0.5"),
        ({"rope_scaling": {**YARN, "factor": None}}, '"rope_scaling.factor" must be a positive number, got None'),
        ({"rope_scaling": {**YARN, "truncate": None}}, '"rope_scaling.truncate" must be true or false'),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, "beta_fast of at least beta_slow"),
        ({"rope_scaling": {**YARN, "finetuned": True}}, "keys that are not supported .* 'yarn': .'finetuned'"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 64}, "disagree: 64, 32"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 'no "low_freq_factor"'),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4}}, "disagree"),
        ({"rope_parameters": LLAMA3_SCALING, "rope_scaling": {**LLAMA3_SCALING, "factor": 32.0}}, "disagree"),
        ({"rope_theta": "10000"}, "\"rope_theta\" must be a positive number, got '10000'"),
        ({"rope_theta": [1]}, '"rope_theta" must be a positive number'),
        ({"rope_theta": float("nan")}, '"rope_theta" must be a positive number, got nan'),
        (
            {"num_attention_heads": 7, "num_key_value_heads": 2, "head_dim": 8},
            r"num_heads \(7\) must be a multiple",
        ),  # B102
        ({"hidden_size": 30, "num_attention_heads": 4}, '"hidden_size" .30. is not a multiple'),  # B102
        ({"head_dim": 7}, "head_dim must be even"),
        ({"vocab_size": "512"}, "\"vocab_size\" must be a whole number from 1 to 16777216, got '512'"),
        ({"vocab_size": True}, "got True"),
        ({"vocab_size": 0}, "got 0"),
        ({"vocab_size": 10**18}, '"vocab_size" must be a whole number from 1 to 16777216'),
        ({"num_hidden_layers": 10**9}, '"num_hidden_layers" must be a whole number from 1 to 4096, got 1000000000'),
        ({"hidden_size": None}, '"hidden_size" is missing'),
        ({"rms_norm_eps": -1e-5}, '"rms_norm_eps" must be a positive number'),
        ({"tie_word_embeddings": "yes"}, '"tie_word_embeddings" must be true or false'),
    ],
)
def test_what_cannot_be_run_exactly_is_refused_by_key_and_value(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        ModelConfig.from_hf({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**MISTRAL, "sliding_window": 64}, '"sliding_window" is 64: sliding-window attention'),
        ({key: value for key, value in MISTRAL.items() if key != "sliding_window"}, '"sliding_window" is missing'),
        ({**MISTRAL, "sliding_window": "no"}, '"sliding_window" must be a whole number'),
        ({**MISTRAL, "attention_bias": True}, "\"attention_bias\" is True: models of the type 'mistral' have no"),
        ({**MISTRAL, "num_key_value_heads": None}, '"num_key_value_heads" is missing'),
        ({**QWEN2, "num_key_value_heads": None}, '"num_key_value_heads" is missing'),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 64}, '"use_sliding_window" is True'),
        ({**QWEN2, "layer_types": ["full_attention", "sliding_attention"]}, "only 'full_attention' layers"),
    ],
)
def test_what_other_families_cannot_do_is_refused_too(config, message):
    with pytest.raises(ModelConfigError, match=message):
        ModelConfig.from_hf(config)


def test_a_window_that_reaches_over_the_whole_context_is_none():
    assert ModelConfig.from_hf({**MISTRAL, "sliding_window": 128}) == ModelConfig.from_hf(LLAMA)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
        (YARN, YarnScaling(4.0, 32)),
        ({"type": "yarn", "factor": 4.0}, YarnScaling(4.0, 128)),  # as transformers has it: the context itself
        ({**YARN, "beta_fast": None, "attention_factor": None, "mscale": 1.0}, YarnScaling(4.0, 32)),
        ({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, YarnScaling(4.0, 32, 1.0)),
    ],
)
def test_scalings_are_read_as_transformers_does(scaling, expected):
    assert ModelConfig.from_hf({**LLAMA, "rope_scaling": scaling}).rope.scaling == expected


def test_the_original_context_may_stand_outside_of_the_scaling():
    scaling = {"type": "yarn", "factor": 4.0}
    config = ModelConfig.from_hf({**LLAMA, "rope_scaling": scaling, "original_max_position_embeddings": 16})
    assert config.rope.scaling == YarnScaling(4.0, 16)


@pytest.mark.case("D22")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": []}, r'"model_type" must be one of .* got \[\]'),
        ({"model_type": {"a": 1}}, '"model_type" must be one of'),
        ({"layer_types": 5}, '"layer_types" must be a list, got 5'),
        ({"layer_types": [["full_attention"]]}, "only 'full_attention' layers"),
        ({"rms_norm_eps": float("inf")}, '"rms_norm_eps" must be a positive number, got inf'),
        ({"rms_norm_eps": 10**400}, '"rms_norm_eps" must be a positive number, got 1000.*000$'),
        ({"rms_norm_eps": 1e39}, "norm_eps must be a number from 1e-30 to 1, got 1e.39"),  # no float32
        ({"rms_norm_eps": 1e-60}, "norm_eps must be a number from 1e-30 to 1, got 1e-60"),
        ({"rope_theta": 1e300}, "rope theta must be a number from 1 to 1e.30"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"has the type \['yarn'\]"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "factor must be a number from 1 to 1e.06"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 1e300}}, "original context length"),
        ({"hidden_act": "x" * 5000}, "\"hidden_act\" is '.{1,100}': only 'silu'"),
        ({"architectures": [["x"] * 5000] * 5000}, "got .{1,300}$"),
    ],
)
def test_values_of_any_type_and_size_are_refused_by_key(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        ModelConfig.from_hf({**LLAMA, **changes})


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_qwen3_must_say_what_its_readers_assume_differently(key):
    with pytest.raises(ModelConfigError, match=f'"{key}" is missing'):
        ModelConfig.from_hf({name: value for name, value in QWEN3.items() if name != key})


def test_qwen3_may_name_a_window_that_it_does_not_use():
    config = ModelConfig.from_hf({**QWEN3, "use_sliding_window": False, "sliding_window": 4096})
    assert config.qk_norm


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": True}, {"attention_bias": "qkv"}, {"attention_bias": "qkvo", "qk_norm": True}]
)
def test_num_parameters_is_what_the_model_has(make_config, tie_embeddings, changes):
    config = make_config(tie_embeddings=tie_embeddings, **changes)
    assert config.num_parameters == sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.case("D57")
def test_what_we_refuse_for_transformers_sake_it_refuses() -> None:
    with pytest.raises(Exception, match="not a multiple of the number of attention heads"):
        LlamaConfig(hidden_size=30, num_attention_heads=4, head_dim=8)
