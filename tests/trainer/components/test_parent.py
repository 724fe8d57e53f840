"""A model folder as the start of a run: added tokens, and settings that contradict it."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder
from trainer.components.architecture import architecture_settings
from trainer.components.model import model_config
from trainer.components.parent import check_architecture, parent_of, read_parent, starting_from, trained_config
from trainer.errors import UsageError
from trainer.settings.train import ModelSettings, ParentSettings, TrainSettings

Change = Callable[..., TrainSettings]

SHAPE = {"context_length": 32, "d_model": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
TOKENS = 290  # of the tokenizer


@pytest.fixture
def write(tokenizer_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a folder with random weights, its tied embedding of so many rows."""

    def written(rows: int = TOKENS, **changes: Any) -> Path:
        torch.manual_seed(0)
        model = Transformer(ModelConfig(**{"vocab_size": rows, "d_ff": 24, **SHAPE, **changes}))
        tokenizer = Tokenizer.from_files(tokenizer_folder)
        save_model_folder(
            tmp_path / "parent", model=model, tokenizer=tokenizer, generation=GenerationDefaults(), provenance={}
        )
        return tmp_path / "parent"

    return written


@pytest.mark.parametrize(
    ("rows", "added", "expected"),
    [
        (290, 1, 291),  # without padding
        (320, 2, 320),  # into the padding
        (320, 30, 320),
        (320, 31, 384),  # 320 is 5 * 64
        (304, 15, 320),  # 304 is 19 * 16
        (384, 200, 512),  # 384 is 3 * 128
        (2048, 1800, 2176),  # a multiple of 128 at most
        (291, 2, 292),
    ],
)
def test_a_vocabulary_grows_as_it_was_padded(write: Callable[..., Path], rows: int, added: int, expected: int) -> None:
    parent = read_parent(write(rows), [f"<|{number}|>" for number in range(added)])
    assert parent.config.vocab_size == expected
    assert parent.tokenizer.vocab_size == TOKENS + added


@pytest.mark.parametrize("rows", [290, 300, 320])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_added_tokens_are_the_mean_of_the_others(write: Callable[..., Path], rows: int, tied: bool) -> None:
    """Of those with tokens; what was there stays, padding too, and so do the logits of the tokens."""
    folder = write(rows, tie_embeddings=tied)
    tokens = torch.arange(20)[None]
    before, _ = read_parent(folder).load_model()
    parent = read_parent(folder, [f"<|{number}|>" for number in range(15)])
    after, _ = parent.load_model()
    matrices = [(before.output_weight, after.output_weight)]
    matrices += [(before.model.embed_tokens.weight, after.model.embed_tokens.weight)] if not tied else []
    for old, new in matrices:
        assert torch.equal(new[:TOKENS], old[:TOKENS])
        mean = old[:TOKENS].detach().double().mean(0).float()
        assert torch.equal(new[TOKENS : TOKENS + 15], mean.expand(15, -1))
        assert torch.equal(new[TOKENS + 15 : rows], old[TOKENS + 15 :])
    assert len(after.output_weight) == parent.config.vocab_size == after.config.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(after(tokens)[..., :TOKENS], before(tokens)[..., :TOKENS], rtol=0, atol=1e-6)
    assert [parameter.requires_grad for parameter in after.parameters()] == [True] * len(list(after.parameters()))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["<|endoftext|>"], "'<|endoftext|>' is a special token already"),
        (["<|a|>", "<|a|>"], "'<|a|>' is a special token already"),
        (["a"], "spelling of an ordinary token"),
        ([""], "is empty"),
    ],
)
def test_tokens_that_cannot_be_added_are_refused(write: Callable[..., Path], tokens: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^--extend-tokens: .*{re.escape(message)}"):
        read_parent(write(), tokens)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"num_kv_heads": 2, "d_ff": 99, "qk_norm": False, "tie_embeddings": False, "rope_theta": 500.0},
        {"activation": "silu", "norm": "post", "d_ff": 33},
        {"activation": "relu2", "position": "none", "logit_soft_cap": 30.0, "d_ff": 32},
        {"value_residual": True, "num_layers": 3, "initializer_range": 0.3},
    ],
)
def test_the_settings_of_an_architecture_give_it_again(shape: dict[str, Any]) -> None:
    config = model_config(ModelSettings(d_model=128, num_layers=shape.pop("num_layers", 2), **shape), 300)
    again = ModelSettings(**architecture_settings(config))
    assert model_config(again, 300) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 3}, "--num-layers is 3, and there 1"),
        ({"qk_norm": True, "d_model": 32}, "--d-model is 32, and there 16; --qk-norm is True, and there False"),
        ({"zero_outputs": "blocks"}, "--zero-outputs is blocks, and there none"),
        ({"rope_theta": 7.0}, "--rope-theta is 7.0, and there 10000.0"),
        ({"context_length": 33}, r"--context-length \(33\) must be at most the 32 of .*parent; --extend-context"),
    ],
)
def test_settings_that_contradict_the_folder_are_named(
    write: Callable[..., Path], settings: TrainSettings, change: Change, changes: dict[str, Any], message: str
) -> None:
    folder = write()
    changed = change(starting_from(settings, folder), **changes)
    with pytest.raises(UsageError, match=message):
        check_architecture(changed, read_parent(folder))


def test_a_longer_context_is_the_model_s_where_it_is_asked_for(
    write: Callable[..., Path], settings: TrainSettings, change: Change
) -> None:
    """With the same weights and logits; without a longer one, the option is refused."""
    folder = write()
    started = starting_from(settings, folder, ["<|a|>"], extend_context=40)
    assert (started.parent.extend_context, started.model.context_length) == (True, 40)
    assert trained_config(started, None).context_length == 40
    for parent in (parent_of(started, folder), read_parent(folder, extend_context=40)):
        model, _ = parent.load_model()
        assert parent.config == model.config == dataclasses.replace(model.config, context_length=40)
        tokens = torch.arange(32)[None]
        with torch.no_grad():
            before = read_parent(folder).load_model()[0](tokens)
            assert torch.equal(model(tokens)[..., :TOKENS], before)
            assert model(torch.arange(40)[None]).isfinite().all()
    assert starting_from(settings, folder, extend_context=32).parent.extend_context is False
    with pytest.raises(
        UsageError, match=r"^--extend-context: --context-length \(32\) must be above the 32 of the model"
    ):
        parent_of(change(started, context_length=32), folder)
    with pytest.raises(UsageError, match=r"^--extend-context is for the model of --init"):
        ParentSettings(extend_context=True)


def test_an_estimate_counts_the_run_s_windows_and_the_added_tokens(
    write: Callable[..., Path], settings: TrainSettings, change: Change
) -> None:
    started = change(starting_from(settings, write(), ["<|a|>"]), context_length=8)
    config = trained_config(started, None)
    assert (config.context_length, config.vocab_size) == (8, 291)
    assert trained_config(started, 291) == config
    with pytest.raises(UsageError, match=r"the vocabulary has 300 tokens, and that of --init .* 291"):
        trained_config(started, 300)
    with pytest.raises(UsageError, match="unknown vocabulary size"):
        trained_config(settings, None)


def test_what_needs_a_folder_is_refused_without(settings: TrainSettings, change: Change, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--initialization folder needs a model folder: give --init"):
        change(settings, initialization="folder")
    with pytest.raises(UsageError, match="give --init as well"):
        change(settings, extend_tokens=("<|a|>",))
    with pytest.raises(UsageError, match=r"--initialization is mimetic, but the weights come from --init .*: omit it"):
        change(settings, init=tmp_path)
    for option in ({"depth": 3}, {"preset": "stories15m"}):
        with pytest.raises(UsageError, match=f"{next(iter(option))} sets the shape of a new model"):
            dataclasses.replace(
                change(settings, **option),
                parent=dataclasses.replace(settings.parent, init=tmp_path),
                model=dataclasses.replace(settings.model, initialization="folder"),
            )
