"""How many blocks the KV cache gets."""

import dataclasses
from pathlib import Path

import pytest

from services.inference.engine.ipc import EngineConfig
from services.inference.engine.worker.cache_size import CacheError, num_blocks, served_context
from shared.lm import ModelConfig, read_description

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(model_dir: Path) -> ModelConfig:
    """Its context is 128 tokens, which are 8 blocks."""
    return read_description(model_dir).config


@pytest.mark.parametrize(
    ("settings", "free", "blocks"),
    [
        ({"max_batch": 4}, GIB, 4 * 8),
        ({"max_batch": 4, "context_length": 20}, GIB, 4 * 2),
        ({"max_batch": 1000}, 40_000, 20),  # half of what is free
        ({"max_batch": 1, "kv_cache_bytes": 500_000}, 0, 500),  # all that was asked for, and nothing else counts
    ],
)
def test_how_many_blocks(model: ModelConfig, settings: dict[str, int], free: int, blocks: int) -> None:
    config = EngineConfig(Path(), **settings)
    assert num_blocks(config, model, 1000, free, weight_bytes=0, position_bytes=0) == blocks


@pytest.mark.parametrize(("kv_cache_bytes", "words"), [(999, "OWNLM_KV_CACHE_BYTES is 999"), (None, "128 tokens")])
def test_too_little_memory_is_refused_with_what_to_do(
    model: ModelConfig, kv_cache_bytes: int | None, words: str
) -> None:
    config = EngineConfig(Path(), kv_cache_bytes=kv_cache_bytes)
    with pytest.raises(CacheError, match=words):
        num_blocks(config, model, 1000, 15_000, weight_bytes=0, position_bytes=0)


def test_a_context_longer_than_the_models_is_refused(model: ModelConfig) -> None:
    for length in (2, 127, 128):
        assert served_context(EngineConfig(Path(), context_length=length), model) == length
    assert served_context(EngineConfig(Path()), model) == 128
    with pytest.raises(CacheError, match=r"OWNLM_CONTEXT_LENGTH is 129, and the model takes at most 128 tokens"):
        served_context(EngineConfig(Path(), context_length=129), model)


@pytest.mark.case("D21")
def test_a_long_context_of_a_small_model_is_refused_however_much_memory_is_free(model: ModelConfig) -> None:
    """A cache of 16 GiB for 4 MB of weights makes no sense; for 400 MB it may."""
    long = dataclasses.replace(model, context_length=1 << 24)
    sizes = {"block_bytes": 16 * 1000, "free": 100 * GIB}
    config = EngineConfig(Path())
    with pytest.raises(CacheError, match=r"16777216 tokens .* at most 1024 MiB for a model of this size; lower OWNLM"):
        num_blocks(config, long, **sizes, weight_bytes=4_000_000, position_bytes=100)
    assert num_blocks(config, long, **sizes, weight_bytes=400_000_000, position_bytes=100) > (1 << 24) // 16


@pytest.mark.case("D21")
def test_tables_beside_the_cache_count(model: ModelConfig) -> None:
    config = EngineConfig(Path(), max_batch=1000)
    blocks = num_blocks(config, model, 1000, 40_000, weight_bytes=0, position_bytes=50)
    assert blocks == (20_000 - 128 * 50) // 1000
    with pytest.raises(CacheError):
        num_blocks(config, model, 1000, 40_000, weight_bytes=0, position_bytes=100)
