"""Folders that strangers made: no matter what their files are and hold, a sentence names the file."""

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.bpe import Tokenizer, train_bpe
from shared.lm import GenerationDefaults, ModelFolderError, load_model_folder, save_model_folder
from shared.lm.description import read_description
from shared.lm.stored_weights import StoredWeights
from shared.system.checksums import write_checksums

pytestmark = [pytest.mark.extended, pytest.mark.case("D22")]

CONFIGS = ["config.json", "generation_config.json", "tokenizer_config.json", "ownlm.json"]
FILES = [*CONFIGS, "tokenizer.json", "model.safetensors", "model.safetensors.index.json"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(["Once upon a time there was a little fox." * 3], 270, special_tokens=["<|endoftext|>"]).tokenizer


@pytest.fixture(scope="module")
def original(make_model: Callable[..., Any], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound folder, its weights listed in an index."""
    path = tmp_path_factory.mktemp("strange") / "model"
    model = make_model(vocab_size=272)
    save_model_folder(
        path,
        model=model,
        tokenizer=tokenizer,
        generation=GenerationDefaults(eos_token_ids=(269,)),
        provenance={},
        extra_files=lambda folder: (folder / "model.safetensors").rename(folder / "a.safetensors") and None,
    )
    weight_map = dict.fromkeys(model.state_dict(), "a.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    load_model_folder(path)
    (path / "checksums.json").unlink()  # which would refuse each change before the file is read
    return path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def refusal(folder: Path) -> str | None:
    """What is said where the folder is refused."""
    try:
        with StoredWeights(folder, read_description(folder).config) as stored:
            for name in stored:
                stored[name]
    except ModelFolderError as error:
        message = str(error)
        assert len(message) < 2000
        message.encode()  # no half of a surrogate pair, which could not be logged
        assert "\n" not in message
        return message
    return None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["FIFO", "directory", "device"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("has_sums", [False, True])
def test_what_is_no_regular_file_is_named_and_never_waited_for(
    folder: Path, name: str, kind: str, has_sums: bool
) -> None:
    if has_sums:
        write_checksums(folder)
    (folder / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(folder / name)
    elif kind == "directory":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    message = refusal(folder)
    assert message is not None
    assert f"{name}" in message
    assert f"cannot be read: expected a regular file, found a {kind}" in message


@pytest.mark.parametrize("has_sums", [False, True])
def test_a_file_of_gigabytes_is_not_read(folder: Path, has_sums: bool) -> None:
    if has_sums:
        write_checksums(folder)
    os.truncate(folder / "config.json", 1 << 40)
    message = refusal(folder)
    assert message is not None
    assert "config.json" in message
    assert f"cannot be read: larger than the limit of {256 << 20 if has_sums else 16 << 20:,} bytes" in message


@pytest.mark.parametrize("shard", ["x" * 5000, "", "..", "a\0b", "\ud800", "b\nc", "/etc/passwd", 5, None, []])
def test_a_shard_that_can_be_no_file_beside_the_index_is_refused(folder: Path, shard: object) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = shard
    index.write_text(json.dumps(content))
    message = refusal(folder)
    assert message is not None
    if shard != "..":  # which is a directory
        assert f"{index}: model.norm.weight must name a file in the same folder" in message


def test_an_index_of_nothing_is_named(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {}}')
    assert refusal(folder) == f'{index}: "weight_map" must be an object of names and files, got {{}}'


def test_a_folder_of_an_impossible_name_is_refused() -> None:
    with pytest.raises(ModelFolderError, match="cannot be read: File name too long"):
        read_description("x" * 5000)
    with pytest.raises(ModelFolderError, match="no such folder"):
        read_description("a\0b")


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**310)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\ud800", "x" * 5000, "llama", "yarn", "full_attention", 1e400, -1, 0, 1 << 24, 1 << 64]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

KEYS = {
    "config.json": [
        "model_type architectures vocab_size max_position_embeddings hidden_size num_hidden_layers num_attention_heads",
        "num_key_value_heads head_dim intermediate_size hidden_act rms_norm_eps attention_bias mlp_bias sliding_window",
        "use_sliding_window layer_types tie_word_embeddings rope_theta rope_scaling rope_parameters initializer_range",
        "partial_rotary_factor quantization_config auto_map eos_token_id original_max_position_embeddings",
    ],
    "generation_config.json": [
        "temperature top_p top_k min_p repetition_penalty do_sample eos_token_id bos_token_id",
    ],
    "tokenizer_config.json": ["bos_token eos_token tokenizer_class added_tokens_decoder"],
    "ownlm.json": ["format_version tokenizer_fingerprint training"],
    "model.safetensors.index.json": ["metadata weight_map"],
}
ROPE_KEYS = (
    "rope_theta factor low_freq_factor high_freq_factor original_max_position_embeddings "
    "attention_factor beta_fast beta_slow mscale mscale_all_dim truncate"
)
rope = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "llama3", "yarn", "default"])},
    optional={key: anything | st.floats(1e-9, 1e9) for key in ROPE_KEYS.split()},
)


@st.composite
def changes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(" ".join(KEYS[name]).split()), min_size=1, max_size=3, unique=True))
    return {key: draw(rope | anything if key.startswith("rope_") else anything) for key in keys}


@contextlib.contextmanager
def replaced(file: Path, content: bytes) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def fuzz(function: Callable[..., None]) -> Callable[..., None]:
    return settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])(function)


@pytest.mark.parametrize("name", KEYS)
@fuzz
@given(data=st.data())
def test_any_value_of_any_key_is_taken_or_refused_in_a_sentence(original: Path, name: str, data: st.DataObject) -> None:
    file = original / name
    content = {**json.loads(file.read_text()), **data.draw(changes(name))}
    with replaced(file, json.dumps(content).encode()):
        message = refusal(original)
    if message is not None:
        assert str(original) in message


@pytest.mark.parametrize("name", KEYS)
@fuzz
@given(content=anything | st.binary(max_size=50))
def test_any_content_of_a_file_is_taken_or_refused_in_a_sentence(original: Path, name: str, content: object) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    with replaced(original / name, raw):
        message = refusal(original)
    if message is not None:
        assert str(original) in message


@fuzz
@given(
    entries=st.dictionaries(
        st.sampled_from(["model.norm.weight", "__metadata__", "x" * 5000, "\ud800", "a\nb"]) | st.text(max_size=8),
        anything
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "I64", "F8_E4M3", "BOOL", "?"]) | anything,
                "shape": st.lists(st.integers(0, 64) | st.integers(), max_size=3) | anything,
                "data_offsets": st.lists(st.integers(0, 200) | st.integers(), min_size=2, max_size=2) | anything,
            },
            optional={"more": anything},
        ),
        max_size=3,
    )
    | anything,
    data=st.binary(max_size=200),
    size=st.none() | st.integers(0, 2**64 - 1),
)
def test_any_header_of_a_weight_file_is_refused_in_a_sentence(
    original: Path, entries: object, data: bytes, size: int | None
) -> None:
    header = json.dumps(entries).encode()
    raw = struct.pack("<Q", len(header) if size is None else size) + header + data
    with replaced(original / "a.safetensors", raw):
        message = refusal(original)
    assert message is not None
    assert str(original) in message
