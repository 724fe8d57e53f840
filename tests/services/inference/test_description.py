"""What a model folder says of itself, and what it may say."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.inference.description import Architecture, Origin, read_origin
from shared.lm import Llama3Scaling, ModelConfig, RopeConfig, YarnScaling, read_description

CONFIG = ModelConfig(
    vocab_size=100, context_length=64, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48,
    tie_embeddings=False,
)  # fmt: skip


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model without checksums."""
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / "checksums.json").unlink()
    return copy


def rewrite(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_an_architecture_and_its_parameters() -> None:
    described = Architecture.of(CONFIG)
    assert (described.family, described.num_kv_heads, described.rope_scaling) == ("llama", 2, None)
    assert described.parameters == {
        "embedding": 100 * 32,
        "attention": 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32),  # q, k and v, o
        "feed_forward": 2 * 3 * 32 * 48,
        "norms": (2 * 2 + 1) * 32,
        "output": 100 * 32,
    }
    assert sum(described.parameters.values()) == CONFIG.num_parameters


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (Llama3Scaling(8.0, 1.0, 4.0, 64), "Llama 3, factor 8"),
        (YarnScaling(2.5, 64), "YaRN, factor 2.5"),
    ],
)
def test_a_rope_scaling_has_its_name(scaling: Any, said: str) -> None:
    from dataclasses import replace

    assert Architecture.of(replace(CONFIG, rope=RopeConfig(500_000.0, scaling))).rope_scaling == said


def test_our_own_folder(model_dir: Path) -> None:
    origin = read_origin(read_description(model_dir))
    assert origin.ownlm_version == json.loads((model_dir / "ownlm.json").read_text())["ownlm_version"]
    assert (origin.architecture, origin.has_checksums) == ("LlamaForCausalLM", True)


def test_a_folder_from_elsewhere(folder: Path) -> None:
    (folder / "ownlm.json").unlink()
    rewrite(folder / "config.json", transformers_version="5.1.0")
    origin = read_origin(read_description(folder))
    assert origin == Origin(architecture="LlamaForCausalLM", transformers_version="5.1.0")


@pytest.mark.parametrize("value", [None, 5, [], {}, "", "a\x00b", "\u202eabc", "x" * 101, True])
def test_names_that_cannot_be_are_left_out(folder: Path, value: object) -> None:
    rewrite(folder / "config.json", transformers_version=value)
    rewrite(folder / "ownlm.json", ownlm_version=value)
    origin = read_origin(read_description(folder))
    assert (origin.transformers_version, origin.ownlm_version) == (None, None)


@pytest.mark.parametrize("value", [None, "5", [], {}, -1, 1 << 60, True, math.nan, math.inf])
def test_numbers_that_cannot_be_are_left_out(folder: Path, value: object) -> None:
    rewrite(folder / "ownlm.json", training={"steps": value, "tokens": value, "validation_loss": value})
    origin = read_origin(read_description(folder))
    assert (origin.steps, origin.tokens, origin.validation_loss) == (None, None, None)


def test_the_results_of_a_training_that_left_no_record(folder: Path) -> None:
    training = {"steps": 7, "tokens": 70, "validation_loss": 2.5, "bits_per_byte": 1.25}
    rewrite(folder / "ownlm.json", training=training)
    origin = read_origin(read_description(folder))
    assert origin.model_dump(include=set(training)) == training
