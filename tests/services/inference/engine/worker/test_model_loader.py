"""Which runner a model gets, with how much memory, and what it never imports."""

import ctypes
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from services.inference.engine.ipc import EngineConfig
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.types import SequenceRequest
from services.inference.engine.worker import model_loader
from services.inference.engine.worker.model_loader import DeviceError, load_model
from shared.bpe import Tokenizer
from shared.lm import (
    GenerationDefaults,
    SamplingParams,
    Transformer,
    read_description,
    save_model_folder,
)


@pytest.mark.case("D21")
def test_memory_follows_the_cache_that_was_asked_for_and_not_the_context(model_dir: Path, tmp_path: Path) -> None:
    """The process's own peak, in a process of its own."""
    folder = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 24}))
    (folder / "checksums.json").unlink()
    program = f"""
import resource
from pathlib import Path
from services.inference.engine.ipc import EngineConfig
from services.inference.engine.types import SequenceRequest
from services.inference.engine.worker.model_loader import load_model
from services.inference.engine.runner.protocol import Segment
from shared.lm import SamplingParams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
runner = load_model(EngineConfig(Path({str(folder)!r}), device="cpu", threads=1, kv_cache_bytes=16 << 20)).runner
runner.open_slot(0, SequenceRequest((1, 2), SamplingParams(), max_tokens=1, stop_ids=frozenset()))
runner.run([Segment([1, 2], 0, [0], sample_slots=(0,))])
print(peak() - before)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(printed.split()[-1]) < 100e6


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
    assert (loaded.ready.device, loaded.ready.dtype) == ("cpu", "float32")


def test_a_driver_that_torch_cannot_use(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too old, an image for GPUs on a host that has none, or torch built for CPUs on one that has."""
    monkeypatch.setattr(ctypes, "CDLL", libraries(has_driver=True))

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nMore words.")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    with capture_logs() as log:
        assert load_model(EngineConfig(model_dir, threads=1)).ready.device == "cpu"
    [warning] = [line for line in log if line["log_level"] == "warning"]
    assert warning["reason"] == "The NVIDIA driver on your system is too old (found version 12020)."
    with pytest.raises(DeviceError, match=r"OWNLM_DEVICE is cuda, but no GPU can be used \(The NVIDIA driver .*12020"):
        load_model(EngineConfig(model_dir, device="cuda"))


def test_a_driver_and_a_gpu(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_config: EngineConfig, device: str) -> None:
        raise DeviceError(f"would run on {device}")

    monkeypatch.setattr(ctypes, "CDLL", libraries(has_driver=True))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(model_loader, "_load_on_cuda", refuse)
    with pytest.raises(DeviceError, match=r"would run on cuda$"):
        load_model(EngineConfig(model_dir))


@pytest.mark.case("D41")
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
    for sequence in range(64):
        params = SamplingParams(temperature=100.0, seed=sequence)
        runner.open_slot(sequence, SequenceRequest((1, 2), params, max_tokens=1, stop_ids=frozenset(), num_logprobs=1))
    draws = runner.run([Segment([1, 2], 0, [0], sample_slots=tuple(range(64)))]).sampled_tokens
    assert min(draw.token for draw in draws) >= 0
    assert max(draw.token for draw in draws) < tokenizer.vocab_size
    # docs/reference/generate-api.md: padding has no part in log-probabilities. The oracle is torch's softmax.
    with torch.no_grad():
        logits = model.float()(torch.tensor([[1, 2]]))[0, -1]
    among_ids = logits[: tokenizer.vocab_size].log_softmax(-1)
    assert among_ids[0] > logits.log_softmax(-1)[0] + 0.1
    for draw in draws:
        assert draw.logprobs is not None
        assert draw.logprobs.chosen == pytest.approx(among_ids[draw.token].item(), abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_a_model_with_biases_is_served_in_every_dtype(
    model_dir: Path, tokenizer: Tokenizer, tmp_path: Path, dtype: str
) -> None:
    """The most likely token after a prompt is torch's, which biases decide here."""
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(read_description(model_dir).config, attention_bias="qkvo")).eval()
    torch.nn.init.normal_(model.model.layers[0].self_attn.o_proj.bias, generator=torch.Generator().manual_seed(1))
    save_model_folder(
        tmp_path / "biased", model=model, tokenizer=tokenizer, generation=GenerationDefaults(), provenance={}
    )
    runner = load_model(EngineConfig(tmp_path / "biased", device="cpu", dtype=dtype, threads=1)).runner
    runner.open_slot(0, SequenceRequest((1, 2), SamplingParams(temperature=0.0), max_tokens=1, stop_ids=frozenset()))
    (draw,) = runner.run([Segment([1, 2], 0, [0], sample_slots=(0,))]).sampled_tokens
    with torch.no_grad():
        assert draw.token == int(model(torch.tensor([[1, 2]]))[0, -1].argmax())


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "found"),
    [
        ("float32", "auto", "float32"),
        ("float16", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("int8", "auto", "bfloat16"),
        ("int8", "float16", "float16"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_the_cache_is_of_the_kind_that_was_asked_for(model_dir: Path, dtype: str, kv_dtype: str, found: str) -> None:
    """As many tokens take half of the memory in 16 bits; memory is taken for one context of 128 tokens at first."""
    config = EngineConfig(model_dir, device="cpu", threads=1, dtype=dtype, kv_dtype=kv_dtype, kv_cache_bytes=1 << 20)
    loaded = load_model(config)
    assert loaded.ready.kv_dtype == found
    model = read_description(model_dir).config
    numbers = model.num_layers * model.num_kv_heads * 16 * (model.head_dim + 16)  # values fill vectors of 16
    assert model.head_dim == 8
    assert loaded.ready.num_blocks == (1 << 20) // (numbers * (4 if found == "float32" else 2))
    assert loaded.ready.num_allocated_blocks == 8


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
