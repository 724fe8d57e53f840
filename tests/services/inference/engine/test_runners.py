"""What the model's process decides before it loads: blocks, device, dtype."""

from pathlib import Path

import pytest

from services.inference.engine.messages import EngineConfig
from services.inference.engine.runners import CacheError, DeviceError, load_model, num_blocks
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
    assert num_blocks(EngineConfig(Path(), **settings), model, 1000, free) == blocks


@pytest.mark.parametrize(("kv_cache_bytes", "words"), [(999, "OWNLM_KV_CACHE_BYTES is 999"), (None, "128 tokens")])
def test_too_little_memory_is_told_with_what_to_do(model: ModelConfig, kv_cache_bytes: int | None, words: str) -> None:
    with pytest.raises(CacheError, match=words):
        num_blocks(EngineConfig(Path(), kv_cache_bytes=kv_cache_bytes), model, 1000, 15_000)


def test_a_device_that_is_not_there(model_dir: Path) -> None:
    with pytest.raises(DeviceError, match="OWNLM_DEVICE is cuda:99"):
        load_model(EngineConfig(model_dir, device="cuda:99"))
