import errno
import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from shared.bpe import Tokenizer, train_bpe
from shared.lm import (
    GenerationDefaults,
    LinearScaling,
    Llama3Scaling,
    ModelFolderError,
    RopeConfig,
    SampledRow,
    SamplingError,
    SamplingParams,
    YarnScaling,
    load_model_folder,
    sample,
    save_model_folder,
)
from shared.system.checksums import CHECKSUMS_FILE, Checksums, write_checksums

TEXT = "Once upon a time there was a little fox who wished for the moon, and the moon smiled at the little fox."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """300 tokens, the last of them <|endoftext|>."""
    tokenizer = train_bpe([TEXT, "ab" * 50, TEXT[::-1]], 300, special_tokens=["<|endoftext|>"]).tokenizer
    assert tokenizer.vocab_size == 300
    return tokenizer


@pytest.fixture
def save(make_model, tokenizer, tmp_path):
    """Save a small model as a folder, and return the folder."""

    def save_folder(*, generation=None, path=tmp_path / "model", overwrite=False, extra_files=None, **changes) -> Path:
        save_model_folder(
            path,
            model=make_model(**{"vocab_size": 300, **changes}),
            tokenizer=tokenizer,
            generation=generation or GenerationDefaults(eos_token_ids=(299,)),
            provenance={"steps": 7, "name": "Füchslein"},
            overwrite=overwrite,
            extra_files=extra_files,
        )
        return path

    return save_folder


def unseal(folder: Path) -> None:
    """Say that its files were changed on purpose."""
    (folder / CHECKSUMS_FILE).unlink(missing_ok=True)


def edit(file: Path, **changes) -> None:
    """Change keys of a JSON file on purpose; None removes one."""
    unseal(file.parent)
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_saved_folder_reads_back_equal(save, tokenizer, make_model):
    generation = GenerationDefaults(0.8, 0.95, 40, 0.05, 1.1, (299, 10))
    folder = load_model_folder(save(generation=generation))
    expected = make_model(vocab_size=300)
    torch.testing.assert_close(folder.model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert folder.config == expected.config
    assert folder.generation == generation
    assert folder.tokenizer.fingerprint == tokenizer.fingerprint
    assert folder.provenance["training"] == {"steps": 7, "name": "Füchslein"}
    assert folder.provenance["tokenizer_fingerprint"] == tokenizer.fingerprint
    assert folder.provenance["num_parameters"] == sum(weight.numel() for weight in expected.parameters())
    assert folder.notes == ()


def test_other_users_may_read_a_saved_folder(save):
    assert {oct(file.stat().st_mode & 0o777) for file in save().iterdir()} == {"0o644"}


def test_a_folder_is_the_same_byte_for_byte_when_saved_again(save, tmp_path):
    assert contents(save(path=tmp_path / "first")) == contents(save(path=tmp_path / "second"))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": True},
        {"tie_embeddings": False},
        {"qk_norm": True, "rope": RopeConfig(1_000_000.0)},
        {"rope": RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 256))},
        {"attention_bias": "qkv", "rope": RopeConfig(10_000.0, YarnScaling(4.0, 16))},
        {"attention_bias": "qkvo", "rope": RopeConfig(10_000.0, LinearScaling(4.0))},
    ],
    ids=["tied", "untied", "qwen3", "llama3 scaling", "qwen2, yarn", "llama with biases, linear scaling"],
)
def test_transformers_opens_the_folder_and_gives_equal_logits(save, changes):
    """B92, B103."""
    path = save(**changes)
    assert contents(path).keys() == {
        "checksums.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "ownlm.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    folder = load_model_folder(path)
    peer, loading = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not loading["missing_keys"] | loading["unexpected_keys"] | loading["mismatched_keys"]
    peer_tokenizer = AutoTokenizer.from_pretrained(path)
    ids = folder.tokenizer.encode(TEXT)
    assert peer_tokenizer.encode(TEXT) == ids
    assert peer_tokenizer.eos_token_id == 299
    tokens = torch.tensor([ids])
    with torch.no_grad():
        torch.testing.assert_close(folder.model(tokens), peer(tokens).logits, rtol=0, atol=1e-4)
    assert peer.config.bos_token_id is None
    assert peer.config.eos_token_id == 299


def test_a_folder_that_transformers_wrote_opens_here(save, tmp_path):
    path = save(qk_norm=True, tie_embeddings=False, rope=RopeConfig(500_000.0))
    peer = AutoModelForCausalLM.from_pretrained(path)
    AutoTokenizer.from_pretrained(path).save_pretrained(tmp_path / "theirs")
    peer.save_pretrained(tmp_path / "theirs")
    ours, theirs = load_model_folder(path), load_model_folder(tmp_path / "theirs")
    assert theirs.config == ours.config
    assert theirs.generation == GenerationDefaults(eos_token_ids=(299,))
    assert theirs.tokenizer.encode(TEXT) == ours.tokenizer.encode(TEXT)
    torch.testing.assert_close(theirs.model.state_dict(), ours.model.state_dict(), rtol=0, atol=0)
    assert theirs.provenance == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_dtype_is_recorded_and_kept(make_model, tokenizer, tmp_path, dtype):
    """B90."""
    save_model_folder(
        tmp_path / "model",
        model=make_model(vocab_size=300).to(dtype),
        tokenizer=tokenizer,
        generation=GenerationDefaults(),
        provenance={},
    )
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert peer.dtype == dtype
    assert load_model_folder(tmp_path / "model").model.model.embed_tokens.weight.dtype == dtype


def test_end_of_text_ids_of_both_files_are_joined(save):
    """B95."""
    path = save()
    edit(path / "generation_config.json", eos_token_id=[1, 106])
    edit(path / "config.json", eos_token_id=1)
    assert load_model_folder(path).generation.eos_token_ids == (1, 106)
    edit(path / "generation_config.json", eos_token_id=7)
    assert load_model_folder(path).generation.eos_token_ids == (7, 1)


def test_a_list_of_end_of_text_ids_is_exported_as_one(save):
    """B95."""
    path = save(generation=GenerationDefaults(eos_token_ids=(1, 106)))
    assert GenerationConfig.from_pretrained(path).eos_token_id == [1, 106]
    assert load_model_folder(path).generation.eos_token_ids == (1, 106)


def test_without_generation_config_the_end_of_text_comes_from_elsewhere(save):
    """B95."""
    path = save()
    unseal(path)
    (path / "generation_config.json").unlink()
    edit(path / "config.json", eos_token_id=5)
    assert load_model_folder(path).generation == GenerationDefaults(eos_token_ids=(5,))
    edit(path / "config.json", eos_token_id=None)
    assert load_model_folder(path).generation == GenerationDefaults(eos_token_ids=(299,))


def test_greedy_defaults_survive_a_round_trip(save):
    path = save(generation=GenerationDefaults(temperature=0.0, eos_token_ids=(299,)))
    assert not GenerationConfig.from_pretrained(path).do_sample
    assert load_model_folder(path).generation.temperature == 0.0


def test_padded_rows_are_kept_from_sampling(save):
    """B100: 5,000 hot draws from random weights give real tokens only."""
    folder = load_model_folder(save(vocab_size=320))
    assert folder.valid_tokens.tolist() == [True] * 300 + [False] * 20
    with torch.no_grad():
        logits = folder.model(torch.randint(300, (1, 500), generator=torch.Generator().manual_seed(0)))[0]
    rows = [SampledRow(SamplingParams(temperature=5.0, seed=seed)) for seed in range(5000)]
    tokens = sample(logits.repeat(10, 1), rows, valid_tokens=folder.valid_tokens)
    assert 0 <= min(tokens) <= max(tokens) < 300


def test_an_embedding_smaller_than_the_tokenizer_is_refused(save):
    """B100, when saving and when loading."""
    with pytest.raises(ModelFolderError, match="299 tokens, but the tokenizer has ids up to 299"):
        save(vocab_size=299)
    path = save()
    edit(path / "config.json", vocab_size=299)
    with pytest.raises(ModelFolderError, match=r"config\.json: the model has 299 tokens"):
        load_model_folder(path)


def test_another_tokenizer_than_the_models_is_refused_with_both_fingerprints(save, tokenizer):
    path = save()
    other = train_bpe([TEXT[5:]], 280, special_tokens=["<|endoftext|>"]).tokenizer
    other.save(path)
    unseal(path)
    with pytest.raises(ModelFolderError, match=f"{tokenizer.fingerprint}, but the folder holds {other.fingerprint}"):
        load_model_folder(path)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"mlp_bias": True}, r'config\.json: "mlp_bias" is True'),
        ("config.json", {"num_attention_heads": 7}, r"config\.json: num_heads \(7\)"),
        ("config.json", {"intermediate_size": 50}, r"model\.safetensors: .* has the shape"),
        ("config.json", {"num_hidden_layers": 3}, r"model\.safetensors: the weights lack model\.layers\.2"),
        ("config.json", {"num_hidden_layers": 1}, r"the weights hold model\.layers\.1"),
        ("config.json", {"eos_token_id": 300}, "the end-of-text id 300 is outside"),
        ("generation_config.json", {"eos_token_id": [1, -1]}, r"generation_config\.json: the end-of-text id -1"),
        ("generation_config.json", {"eos_token_id": "2"}, r'generation_config\.json: "eos_token_id" must be .*\'2\''),
        ("generation_config.json", {"eos_token_id": [True]}, '"eos_token_id" must be'),
        ("generation_config.json", {"top_p": 2}, r"generation_config\.json: top_p must be .* got 2"),
        ("ownlm.json", {"training": 5}, r'ownlm\.json: "training" must be an object, got 5'),
        ("ownlm.json", {"training": {"settings": []}}, r'ownlm\.json: "settings" must be an object, got \[\]'),
        ("ownlm.json", {"format_version": 2}, r'ownlm\.json: "format_version" must be 1, got 2'),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused_by_file_and_fault(save, file, changes, message):
    path = save()
    edit(path / file, **changes)
    with pytest.raises(ModelFolderError, match=message):
        load_model_folder(path)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_missing_file_is_named(save, file, sealed):
    path = save()
    if not sealed:
        unseal(path)
    (path / file).unlink()
    with pytest.raises(ModelFolderError, match=r"model/?.*: ") as caught:
        load_model_folder(path)
    assert file in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "ownlm.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"\0" * 10])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_file_is_named(save, file, content, sealed):
    path = save()
    if not sealed:
        unseal(path)
    (path / file).write_bytes(content)
    with pytest.raises(ModelFolderError) as caught:
        load_model_folder(path)
    assert file in str(caught.value)


def flip_a_bit(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x20
    file.write_bytes(content)


@pytest.mark.case("D40")
def test_a_single_flipped_bit_of_a_weight_is_refused_by_name(save):
    """The weight stays a finite number, and the file one that opens: only its checksum shows the damage."""
    path = save()
    name, file = "model.norm.weight", path / "model.safetensors"
    before = load_model_folder(path).model.state_dict()[name]
    header_size = int.from_bytes(file.read_bytes()[:8], "little")
    begin = json.loads(file.read_bytes()[8 : 8 + header_size])[name]["data_offsets"][0]
    flip_a_bit(file, 8 + header_size + begin + 3)
    written = json.loads((path / CHECKSUMS_FILE).read_text())["sha256"][file.name]
    with pytest.raises(ModelFolderError, match=rf"model\.safetensors is not what was written.*, not {written};"):
        load_model_folder(path)
    unseal(path)
    damaged = load_model_folder(path).model.state_dict()[name]
    assert damaged.isfinite().all()
    assert (damaged != before).sum() == 1


@pytest.mark.case("D40")
@pytest.mark.parametrize("file", ["generation_config.json", "ownlm.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_small_file_that_still_makes_sense_is_refused_by_name(save, file, damage):
    """Without some of them a folder opens, with other defaults."""
    path = save()
    if damage == "gone":
        (path / file).unlink()
    else:
        (path / file).write_text((path / file).read_text() + "\n")
    with pytest.raises(ModelFolderError, match=rf"{file}(, which .* cannot be read| is not what was written)"):
        load_model_folder(path)


@pytest.mark.case("D40")
def test_each_file_is_hashed_once(save, monkeypatch):
    path, hashed = save(), []
    verify = Checksums.verify

    def observed(checksums, name, *arguments):
        hashed.append(name)
        verify(checksums, name, *arguments)

    monkeypatch.setattr(Checksums, "verify", observed)
    load_model_folder(path)
    assert sorted(hashed) == sorted(file.name for file in path.iterdir() if file.name != CHECKSUMS_FILE)


def test_weights_that_were_put_beside_those_that_were_written_are_refused(save, tmp_path):
    """An index and its shards, of a folder whose checksums list neither."""
    path = save()
    weights = load_file(path / "model.safetensors")
    unseal(path)
    (path / "model.safetensors").unlink()
    write_checksums(path)
    save_file(weights, path / "shard.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "shard.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFolderError, match=r"shard\.safetensors is not listed in checksums\.json"):
        load_model_folder(path)
    write_checksums(path)
    load_model_folder(path)


@pytest.mark.extended
@pytest.mark.case("D55")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel, lambda model: torch.nn.Linear(2, 2)])
def test_only_our_own_model_is_saved(make_model, tokenizer, tmp_path, wrap):
    """B80: the names of a wrapped one would not be the model's."""
    with pytest.raises(TypeError, match="expected a Transformer, found a "):
        save_model_folder(
            tmp_path / "model",
            model=wrap(make_model(vocab_size=300)),
            tokenizer=tokenizer,
            generation=GenerationDefaults(),
            provenance={},
        )
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelFolderError, match="nowhere: no such folder"):
        load_model_folder(tmp_path / "nowhere")


def test_a_folder_around_model_folders_names_the_one_that_is_meant(save, tmp_path):
    """The folder of a training run: its model where there is one, else its newest checkpoint."""
    for name in ("checkpoints/step-00000005", "checkpoints/step-00000010", "model"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save().rename(path)
    for name in ("model", "checkpoints/step-00000010"):
        with pytest.raises(ModelFolderError, match=rf"run: not a model folder.* did you mean .*/run/{name}\?"):
            load_model_folder(tmp_path / "run")
        (tmp_path / "run" / name / "config.json").unlink()


def test_an_existing_folder_is_replaced_only_when_asked(save):
    path = save()
    before = contents(path)
    with pytest.raises(ModelFolderError, match="already exists"):
        save(seed=1)
    assert contents(path) == before
    save(seed=1, overwrite=True)
    assert contents(path)["model.safetensors"] != before["model.safetensors"]


def test_a_folder_of_someone_elses_is_never_replaced(save, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("friend")
    with pytest.raises(ModelFolderError, match="since ownlm did not write it"):
        save(path=tmp_path / "letters", overwrite=True)
    with pytest.raises(ModelFolderError, match="expected a directory, found a file"):
        save(path=tmp_path / "letters" / "dear", overwrite=True)
    assert (tmp_path / "letters" / "dear").read_text() == "friend"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed")]
)
def test_a_full_disk_is_a_clear_error_and_leaves_the_old_folder(save, error):
    path = save()
    before = contents(path)

    def fail(folder: Path) -> None:
        (folder / "training_state.pt").write_bytes(b"half")
        raise error

    with pytest.raises(ModelFolderError, match="writing the model failed and nothing was changed"):
        save(seed=1, overwrite=True, extra_files=fail)
    assert contents(path) == before
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_weights_that_do_not_fit_on_the_disk_are_a_clear_error(save):
    """A limit on the size of files makes the write itself fail, as a full disk does."""
    path = save()
    before = contents(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ModelFolderError, match="writing the model failed and nothing was changed"):
            save(seed=1, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(path) == before
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_extra_files_arrive_with_the_rest(save):
    path = save(extra_files=lambda folder: (folder / "training_state.pt").write_bytes(b"state"))
    assert (path / "training_state.pt").read_bytes() == b"state"
    load_model_folder(path)


def test_defaults_out_of_range_are_refused():
    with pytest.raises(SamplingError, match="top_p"):
        GenerationDefaults(top_p=3.0)


def test_symbolic_links_are_followed(save, tmp_path):
    """The cache of the Hugging Face hub keeps a model as links."""
    path = save()
    shutil.move(path / "model.safetensors", tmp_path / "blob")
    (path / "model.safetensors").symlink_to(tmp_path / "blob")
    load_model_folder(path)
