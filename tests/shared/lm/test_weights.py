import errno
import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.lm import ModelFolderError, load_weights
from shared.lm.weights import save_weights


@pytest.fixture
def model(make_model):
    return make_model()


@pytest.fixture
def untied(make_model):
    return make_model(tie_embeddings=False)


def store(folder, weights):
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def store_shards(folder, weights):
    """Write two shards and their index; return the shards' paths."""
    names = sorted(weights)
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: weights[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sorted(folder.glob("*.safetensors"))


def assert_same_weights(actual, expected):
    torch.testing.assert_close(actual.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_weights_come_back_equal(make_model, tmp_path, tie_embeddings):
    model = make_model(tie_embeddings=tie_embeddings, qk_norm=True)
    save_weights(model, tmp_path)
    loaded, notes = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)
    assert notes == ()
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_the_file_has_one_embedding_when_tied_and_hugging_faces_names(make_model, tmp_path, tie_embeddings):
    """B92, B103."""
    save_weights(make_model(tie_embeddings=tie_embeddings), tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert ("lm_head.weight" in header) == (not tie_embeddings)
    assert {name.split(".")[0] for name in header} <= {"model", "lm_head"}
    assert "model.layers.1.self_attn.q_proj.weight" in header


def test_a_tied_model_may_store_its_embedding_twice(model, tmp_path):
    """B92 (b)."""
    store(tmp_path, {**model.state_dict(), "lm_head.weight": model.state_dict()["model.embed_tokens.weight"].clone()})
    loaded, _ = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)
    assert loaded.lm_head is None  # the output is the embedding: one parameter


def test_a_tied_model_with_another_output_is_refused(model, tmp_path):
    """B92 (c)."""
    store(tmp_path, {**model.state_dict(), "lm_head.weight": torch.zeros(97, 32)})
    with pytest.raises(ModelFolderError, match=r"model\.safetensors: lm_head\.weight differs .*tie_word_embeddings"):
        load_weights(tmp_path, model.config)


def test_an_untied_model_without_output_is_refused(model, untied, tmp_path):
    """B92 (d)."""
    store(tmp_path, model.state_dict())
    with pytest.raises(ModelFolderError, match=r"lack lm_head\.weight"):
        load_weights(tmp_path, untied.config)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("asked", [None, torch.float32, torch.bfloat16])
def test_half_precision_files_load_on_a_cpu(make_model, tmp_path, stored, asked):
    """B90."""
    model = make_model().to(stored)
    save_weights(model, tmp_path)
    loaded, _ = load_weights(tmp_path, model.config, dtype=asked)
    assert {parameter.dtype for parameter in loaded.parameters()} == {asked or stored}
    assert_same_weights(loaded, model.to(asked or stored))
    assert loaded(torch.tensor([[1, 2, 3]])).isfinite().all()


def test_mixed_precision_loads_as_what_holds_all_of_it(model, tmp_path):
    """bfloat16 and float16 cannot hold one another, but float32 holds both."""
    store(tmp_path, {name: w.bfloat16() if w.ndim == 2 else w.half() for name, w in model.state_dict().items()})
    loaded, _ = load_weights(tmp_path, model.config)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_a_loaded_model_does_not_depend_on_its_file(model, tmp_path):
    save_weights(model, tmp_path)
    loaded, _ = load_weights(tmp_path, model.config)
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(b"\0" * file.stat().st_size)
    assert_same_weights(loaded, model)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_names_of_wrapped_models_are_refused_with_the_reason(model, tmp_path, prefix):
    """B80."""
    store(tmp_path, {prefix + name: weight for name, weight in model.state_dict().items()})
    with pytest.raises(ModelFolderError, match="have the prefix of a wrapper"):
        load_weights(tmp_path, model.config)


def test_missing_unexpected_and_misshapen_tensors_are_named(model, tmp_path):
    """B80."""
    weights = model.state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    store(tmp_path, {key: value for key, value in weights.items() if key != name})
    with pytest.raises(ModelFolderError, match=f"lack {name}"):
        load_weights(tmp_path, model.config)
    store(tmp_path, {**weights, "model.layers.2.extra": torch.zeros(1)})
    with pytest.raises(ModelFolderError, match=r"hold model\.layers\.2\.extra"):
        load_weights(tmp_path, model.config)
    store(tmp_path, {**weights, name: torch.zeros(48, 31)})
    with pytest.raises(
        ModelFolderError, match=rf"{name} has the shape \[48, 31\], but config.json requires \[48, 32\]"
    ):
        load_weights(tmp_path, model.config)
    store(tmp_path, {**weights, name: torch.zeros(48, 32, dtype=torch.int8)})
    with pytest.raises(ModelFolderError, match=f"{name} has the dtype I8"):
        load_weights(tmp_path, model.config)


def test_rope_tables_of_older_exports_are_ignored_with_a_note(model, tmp_path):
    store(tmp_path, {**model.state_dict(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(6)})
    loaded, notes = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)
    assert "1 rotary_emb.inv_freq" in notes[0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_both_ways(model, tmp_path, value):
    """B48."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    weights["model.layers.0.mlp.down_proj.weight"][3, 4] = value
    store(tmp_path, weights)
    with pytest.raises(ModelFolderError, match=r"layers\.0\.mlp\.down_proj\.weight holds NaN or infinite weights"):
        load_weights(tmp_path, model.config)
    model.load_state_dict(weights)
    with pytest.raises(ModelFolderError, match=r"not saved: model\.layers\.0\.mlp\.down_proj\.weight"):
        save_weights(model, tmp_path)


def test_weights_that_a_conversion_would_make_infinite_are_refused(model, tmp_path):
    weights = {**model.state_dict(), "model.norm.weight": torch.full((32,), 1e5)}
    store(tmp_path, weights)
    load_weights(tmp_path, model.config, dtype=torch.bfloat16)
    with pytest.raises(ModelFolderError, match=r"model\.norm\.weight holds weights beyond .* torch\.float16"):
        load_weights(tmp_path, model.config, dtype=torch.float16)


def test_shards_load_like_one_file(model, tmp_path):
    """B101, with an extra file that is ignored and named."""
    store_shards(tmp_path, model.state_dict())
    save_file({"other": torch.zeros(1)}, tmp_path / "adapter.safetensors")
    loaded, notes = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)
    assert notes == ("adapter.safetensors is not among the model's weight files and was ignored",)


def test_the_index_says_which_shard_counts(model, tmp_path):
    """A tensor that a shard holds beyond those that the index gives it is left out."""
    name = "model.norm.weight"
    for shard in store_shards(tmp_path, model.state_dict()):
        weights = load_file(shard)
        if name not in weights:
            save_file({**weights, name: torch.zeros(32), "other": torch.zeros(1)}, shard)
    loaded, _ = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)


def test_damaged_shards_are_refused_by_name(model, tmp_path):
    """B101."""
    first, second = store_shards(tmp_path, model.state_dict())
    whole = second.read_bytes()
    second.write_bytes(whole[:-1000])
    with pytest.raises(ModelFolderError, match=f"{second.name}: truncated"):
        load_weights(tmp_path, model.config)
    second.unlink()
    with pytest.raises(ModelFolderError, match=f"{second.name}: this shard is missing"):
        load_weights(tmp_path, model.config)
    second.write_bytes(whole)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.absent"] = first.name
    index.write_text(json.dumps(content))
    with pytest.raises(ModelFolderError, match=rf"{first.name}: .* lists model\.absent, which the file does not hold"):
        load_weights(tmp_path, model.config)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}', "[" * 9999],
)
def test_a_damaged_index_is_refused(model, tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelFolderError, match=r"index\.json: "):
        load_weights(tmp_path, model.config)


@pytest.mark.parametrize("cut", [0, 4, 100, -1, -5000])
def test_a_file_that_is_cut_short_is_refused(model, tmp_path, cut):
    save_weights(model, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelFolderError, match="truncated, damaged or not a safetensors file"):
        load_weights(tmp_path, model.config)


def test_a_file_of_another_user_is_refused_with_the_systems_reason(model, tmp_path, monkeypatch):
    """safetensors says that such a file does not exist. Its own `save_file` makes files that others cannot read."""

    def refuse(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    save_weights(model, tmp_path)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ModelFolderError, match=r"model\.safetensors cannot be read: Permission denied$"):
        load_weights(tmp_path, model.config)


def test_pickled_weights_are_refused_with_the_reason(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match=r"pytorch_model\.bin is not read, since it may hold code"):
        load_weights(tmp_path, model.config)


def test_the_single_file_is_taken_where_there_are_shards_too(model, untied, tmp_path):
    """As transformers does."""
    shards = store_shards(tmp_path, untied.state_dict())
    save_weights(model, tmp_path)
    loaded, notes = load_weights(tmp_path, model.config)
    assert_same_weights(loaded, model)
    assert [note.split()[0] for note in notes] == [shard.name for shard in shards]
    assert load_file(shards[0])
