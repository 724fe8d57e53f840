"""What the model's process decides before it loads: blocks, device, dtype."""

import ctypes
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from services.inference.engine import runners
from services.inference.engine.messages import EngineConfig
from services.inference.engine.request import RowRequest
from services.inference.engine.runners import CacheError, DeviceError, load_model, num_blocks
from services.inference.engine.step import Segment
from shared.bpe import Tokenizer
from shared.lm import (
    GenerationDefaults,
    ModelConfig,
    SamplingParams,
    Transformer,
    read_description,
    save_model_folder,
)

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


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_without_a_gpus_driver_a_model_is_loaded_without_torch(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", libraries(has_driver=False))
    monkeypatch.setitem(sys.modules, "torch", None)  # to import it is an error
    loaded = load_model(EngineConfig(model_dir, device=device, threads=1))
    assert (loaded.hello.device, loaded.hello.dtype) == ("cpu", "float32")


def test_a_driver_that_torch_cannot_use(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too old, an image for GPUs on a host that has none, or torch built for CPUs on one that has."""
    monkeypatch.setattr(ctypes, "CDLL", libraries(has_driver=True))

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nMore words.")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    with capture_logs() as log:
        assert load_model(EngineConfig(model_dir, threads=1)).hello.device == "cpu"
    [warning] = [line for line in log if line["log_level"] == "warning"]
    assert warning["reason"] == "The NVIDIA driver on your system is too old (found version 12020)."
    with pytest.raises(DeviceError, match=r"OWNLM_DEVICE is cuda, but no GPU can be used \(The NVIDIA driver .*12020"):
        load_model(EngineConfig(model_dir, device="cuda"))


def test_a_driver_and_a_gpu(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_config: EngineConfig, device: str) -> None:
        raise DeviceError(f"would run on {device}")

    monkeypatch.setattr(ctypes, "CDLL", libraries(has_driver=True))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(runners, "_on_cuda", refuse)
    with pytest.raises(DeviceError, match=r"would run on cuda$"):
        load_model(EngineConfig(model_dir))


def test_ids_that_the_tokenizer_does_not_know_are_never_drawn(
    model_dir: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Half of the embedding is padding, and the draws are as good as even. The file is in bfloat16."""
    config = dataclasses.replace(read_description(model_dir).config, vocab_size=2 * tokenizer.vocab_size)
    model = Transformer(config).to(torch.bfloat16)
    save_model_folder(
        tmp_path / "padded", model=model, tokenizer=tokenizer, generation=GenerationDefaults(), provenance={}
    )
    runner = load_model(EngineConfig(tmp_path / "padded", device="cpu", threads=1, max_batch=64)).runner
    for row in range(64):
        params = SamplingParams(temperature=100.0, seed=row)
        runner.open_row(row, RowRequest((1, 2), params, max_tokens=1, stop_ids=frozenset()))
    draws = runner.run([Segment([1, 2], 0, [0], draws=tuple(range(64)))]).draws
    assert min(draw.token for draw in draws) >= 0
    assert max(draw.token for draw in draws) < tokenizer.vocab_size


def libraries(*, has_driver: bool) -> Callable[[str | None], ctypes.CDLL]:
    """`ctypes.CDLL` on a machine with a GPU's driver or without."""
    load = ctypes.CDLL

    def find(name: str | None) -> ctypes.CDLL:
        if name != "libcuda.so.1":
            return load(name)
        if not has_driver:
            raise OSError(name)
        return load(None)

    return find
