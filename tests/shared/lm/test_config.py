import pytest
from transformers import LlamaConfig

from shared.lm import Llama3Scaling, ModelConfig, ModelConfigError, RopeConfig, Transformer

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
        ({"model_type": "mistral"}, r'"model_type" must be one of .* got \'mistral\''),
        ({"architectures": ["LlamaForSequenceClassification"]}, r'"architectures".*LlamaForSequenceClassification'),
        ({"architectures": ["Qwen3ForCausalLM"]}, '"architectures" must be'),
        ({"attention_bias": True}, '"attention_bias" is True'),
        ({"mlp_bias": True}, '"mlp_bias" is True'),
        ({"hidden_act": "gelu"}, "\"hidden_act\" is 'gelu'"),
        ({"sliding_window": 64}, '"sliding_window" is 64'),
        ({"use_sliding_window": True}, '"use_sliding_window" is True'),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "only layers of 'full_attention'"),
        ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5'),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "never run"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "\"rope_scaling\" has the type 'foo'"),  # B94
        ({"rope_parameters": {"rope_type": "foo"}}, "\"rope_parameters\" has the type 'foo'"),  # B94
        ({"rope_parameters": {**LLAMA3_SCALING, "mscale": 1.0}}, "mscale"),
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
        ({"vocab_size": "512"}, "\"vocab_size\" must be a whole number of at least 1, got '512'"),
        ({"vocab_size": True}, "got True"),
        ({"vocab_size": 0}, "got 0"),
        ({"vocab_size": 10**18}, "vocab_size must be a whole number from 1 to 16777216"),
        ({"num_hidden_layers": 10**9}, "num_layers must be a whole number from 1 to 4096, got 1000000000"),
        ({"hidden_size": None}, '"hidden_size" is missing'),
        ({"rms_norm_eps": -1e-5}, '"rms_norm_eps" must be a positive number'),
        ({"tie_word_embeddings": "yes"}, '"tie_word_embeddings" must be true or false'),
    ],
)
def test_what_cannot_be_run_exactly_is_refused_by_key_and_value(changes, message):
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
@pytest.mark.parametrize("qk_norm", [True, False])
def test_num_parameters_is_what_the_model_has(make_config, tie_embeddings, qk_norm):
    config = make_config(tie_embeddings=tie_embeddings, qk_norm=qk_norm)
    assert config.num_parameters == sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.case("D57")
def test_what_we_refuse_for_transformers_sake_it_refuses() -> None:
    with pytest.raises(Exception, match="not a multiple of the number of attention heads"):
        LlamaConfig(hidden_size=30, num_attention_heads=4, head_dim=8)
