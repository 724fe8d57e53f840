"""Weights read without torch, against those that torch and safetensors' own reader for it make of the same file."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shared.lm import ModelFolderError, load_weights
from shared.lm.stored_weights import StoredWeights
from shared.system import thread_pool as work_pool
from shared.system.checksums import Checksums, write_checksums

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def model(make_model):
    return make_model()


def store(folder, weights):
    save_file(weights, folder / "model.safetensors")


def cast(weights, dtype):
    return {name: weight.to(dtype) for name, weight in weights.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_read_as_float32(model, tmp_path, dtype):
    weights = cast(model.state_dict(), dtype)
    tiny = torch.finfo(dtype).smallest_normal / 4  # subnormal in 16 bits; in float64, too small for float32
    weights[NAME][0, :5] = torch.tensor([0.0, -0.0, tiny, -tiny, 1.0], dtype=dtype)
    store(tmp_path, weights)
    with StoredWeights(tmp_path, model.config) as stored:
        assert {stored.dtype(name) for name in stored} == {
            {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
        }
        found = {name: torch.from_numpy(array) for name, array in stored.items()}
    expected = cast(weights, torch.float32)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name].view(torch.int32), weight.view(torch.int32)), name


def test_the_keys_are_what_the_model_asks_for(model, tmp_path):
    embedding = model.state_dict()["model.embed_tokens.weight"]
    store(tmp_path, {**model.state_dict(), "lm_head.weight": embedding.clone()})
    with StoredWeights(tmp_path, model.config) as stored:
        assert len(stored) == len(list(stored)) == len(model.state_dict())
        assert "lm_head.weight" not in stored
        assert NAME in stored


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused_when_it_is_read(model, tmp_path, dtype, value):
    """B48."""
    weights = cast(model.state_dict(), dtype)
    weights[NAME][3, 4] = value
    store(tmp_path, weights)
    with StoredWeights(tmp_path, model.config) as stored:
        for name in stored.keys() - {NAME}:
            assert np.isfinite(stored[name]).all()
        with pytest.raises(ModelFolderError, match=rf"model\.safetensors: {NAME} holds NaN or infinite weights"):
            stored[NAME]


def test_what_float32_cannot_hold_is_refused_as_such(model, tmp_path):
    weights = cast(model.state_dict(), torch.float64)
    weights[NAME][3, 4] = 1e39
    store(tmp_path, weights)
    message = f"{NAME} holds weights beyond the range of float32"
    with StoredWeights(tmp_path, model.config) as stored, pytest.raises(ModelFolderError, match=message):
        stored[NAME]


def test_a_file_that_is_replaced_meanwhile_is_read_to_its_end(model, make_model, tmp_path):
    """Weights of two models are never mixed."""
    store(tmp_path, model.state_dict())
    with StoredWeights(tmp_path, model.config) as stored:
        (tmp_path / "other").mkdir()
        store(tmp_path / "other", make_model(seed=1).state_dict())
        (tmp_path / "other" / "model.safetensors").rename(tmp_path / "model.safetensors")
        assert np.array_equal(stored[NAME], model.state_dict()[NAME].numpy())


def test_a_file_that_is_cut_meanwhile_is_refused(model, tmp_path):
    store(tmp_path, model.state_dict())
    file = tmp_path / "model.safetensors"
    with StoredWeights(tmp_path, model.config) as stored:
        file.write_bytes(file.read_bytes()[:5000])
        with pytest.raises(ModelFolderError, match=r"model\.safetensors: was truncated while it was read"):
            dict(stored)


def test_what_is_read_is_the_callers(model, tmp_path):
    store(tmp_path, model.state_dict())
    with StoredWeights(tmp_path, model.config) as stored:
        stored[NAME][:] = 0
        assert np.array_equal(stored[NAME], model.state_dict()[NAME].numpy())


def test_only_a_folder_with_checksums_needs_a_thread(model, tmp_path, monkeypatch):
    verifiers = []
    verify = Checksums.verify

    def observed(checksums, *arguments):
        verifiers.append(threading.get_ident())
        verify(checksums, *arguments)

    monkeypatch.setattr(Checksums, "verify", observed)
    store(tmp_path, model.state_dict())
    with StoredWeights(tmp_path, model.config):
        pass
    assert verifiers == [threading.get_ident()]
    write_checksums(tmp_path)
    with StoredWeights(tmp_path, model.config):
        deadline = time.monotonic() + 60
        while len(verifiers) < 2:  # within the block, so not by the caller
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert len(verifiers) == 2
    assert verifiers[1] != threading.get_ident()


@pytest.mark.case("D30")
@pytest.mark.parametrize("fate", ["none may start", "none gets to run"])
def test_a_file_is_verified_whatever_becomes_of_the_thread(model, tmp_path, monkeypatch, fate):
    def start(work, arguments):
        if fate == "none may start":
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(work_pool._thread, "start_new_thread", start)
    store(tmp_path, model.state_dict())
    write_checksums(tmp_path)
    with StoredWeights(tmp_path, model.config) as stored:
        assert np.array_equal(stored[NAME], model.state_dict()[NAME].numpy())
    with pytest.raises(ValueError, match="of the reader"), StoredWeights(tmp_path, model.config):
        raise ValueError("of the reader")
    store(tmp_path, {name: weight + 1 for name, weight in model.state_dict().items()})
    with pytest.raises(ModelFolderError, match="is not what was written"), StoredWeights(tmp_path, model.config):
        pass


def test_both_readers_refuse_alike(model, tmp_path):
    """The faults of a folder are found in one place, whichever way its numbers are read."""
    store(tmp_path, model.state_dict())
    for changes in ({"d_ff": 50}, {"num_layers": 3}, {"num_layers": 1}, {"tie_embeddings": False}):
        config = dataclasses.replace(model.config, **changes)
        with pytest.raises(ModelFolderError) as of_torch:
            load_weights(tmp_path, config)
        with pytest.raises(ModelFolderError) as of_numpy:
            StoredWeights(tmp_path, config)
        assert str(of_numpy.value) == str(of_torch.value)
