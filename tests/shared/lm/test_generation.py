from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from shared.lm import SamplingError, SamplingParams, generate, load_weights, read_config

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def stories(data_dir: Path):
    """stories260K: a trained model, and a greedy run of it that was computed independently in float64."""
    folder = data_dir / "models" / "stories260K"
    config = read_config(folder / "hf_converted")
    model, _ = load_weights(folder / "hf_converted", config)
    return model, np.load(folder / "greedy_reference.npz")


def test_a_real_model_reproduces_its_greedy_reference(stories):
    model, reference = stories
    first, *expected = reference["tokens"].tolist()
    assert list(generate(model, [first], GREEDY, max_tokens=len(expected))) == expected


def test_a_real_model_reproduces_its_reference_logits(stories):
    model, reference = stories
    tokens = torch.tensor(reference["tokens"][None, :64], dtype=torch.int64)
    with torch.no_grad():
        logits = model(tokens)[0].double().numpy()
    np.testing.assert_allclose(logits, reference["logits_first64"], rtol=0, atol=1e-4)


def test_a_long_prompt_in_pieces_goes_on_like_the_full_pass(make_model):
    model = make_model(context_length=1300)
    prompt = torch.randint(97, (1100,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = list(prompt)
    for _ in range(5):
        expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert list(generate(model, prompt, GREEDY, max_tokens=5)) == expected[1100:]


def test_generation_ends_before_an_end_of_text_id(make_model):
    """B95: any of several ids ends it, none of them is given, and without them it goes on."""
    model = make_model()
    params = SamplingParams(seed=5, temperature=3.0)
    free = list(generate(model, [1, 2, 3], params, max_tokens=30))
    assert len(free) == 30
    for position in (0, 4, 9):
        eos = {free[position], 96 if free[position] != 96 else 95}
        ended = list(generate(model, [1, 2, 3], params, max_tokens=30, eos_token_ids=eos))
        assert ended == free[: min(free.index(token) for token in eos if token in free)]


def test_generation_ends_where_the_context_does(make_model):
    model = make_model(context_length=16)
    assert len(list(generate(model, [5] * 10, GREEDY, max_tokens=1000))) == 6
    assert len(list(generate(model, [5] * 15, GREEDY, max_tokens=1000))) == 1


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_generation_ends_after_max_tokens(make_model, max_tokens):
    assert len(list(generate(make_model(), [5], GREEDY, max_tokens=max_tokens))) == max_tokens


def test_a_seed_repeats_and_leaves_the_global_generator_and_gradients_alone(make_model):
    model = make_model()
    state = torch.random.get_rng_state()
    first = list(generate(model, [1], SamplingParams(seed=1), max_tokens=20))
    assert list(generate(model, [1], SamplingParams(seed=1), max_tokens=20)) == first
    assert list(generate(model, [1], SamplingParams(seed=2), max_tokens=20)) != first
    assert torch.equal(torch.random.get_rng_state(), state)
    for _ in generate(model, [1], SamplingParams(seed=1), max_tokens=2):
        assert torch.is_grad_enabled()  # between two tokens too, where the caller's code runs


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "got 0"), ([1] * 512, "1 to 511 tokens.*got 512"), ([1, 97], "token 1 is 97"), ([-1], "token 0 is -1")],
)
def test_unusable_prompts_are_refused_at_once(make_model, prompt, message):
    with pytest.raises(ValueError, match=message):
        generate(make_model(), prompt, GREEDY, max_tokens=1)


def test_prompt_and_output_count_for_the_repetition_penalty(make_model):
    """B51, against transformers' own processor over the full pass."""
    model, processor = make_model(), RepetitionPenaltyLogitsProcessor(3.0)
    expected = [1, 2, 3]
    for _ in range(12):
        tokens = torch.tensor([expected])
        expected.append(int(processor(tokens, model(tokens)[:, -1]).argmax()))
    params = SamplingParams(temperature=0.0, repetition_penalty=3.0)
    assert list(generate(model, [1, 2, 3], params, max_tokens=12)) == expected[3:]
    assert list(generate(model, [1, 2, 3], GREEDY, max_tokens=12)) != expected[3:]


def test_only_valid_tokens_are_generated(make_model):
    valid = torch.zeros(97, dtype=torch.bool)
    valid[[4, 40]] = True
    hot = SamplingParams(temperature=100.0)
    assert set(generate(make_model(), [1], hot, max_tokens=50, valid_tokens=valid)) == {4, 40}


def test_a_negative_max_tokens_is_refused(make_model):
    with pytest.raises(ValueError, match="max_tokens must be at least 0, got -1"):
        generate(make_model(), [1], GREEDY, max_tokens=-1)


def test_a_broken_model_is_an_error_not_an_endless_token(make_model):
    """B48."""
    model = make_model()
    model.model.norm.weight[0] = torch.nan
    with pytest.raises(SamplingError, match="after 2 tokens are NaN or infinite"):
        next(generate(model, [1, 2], GREEDY, max_tokens=5))
