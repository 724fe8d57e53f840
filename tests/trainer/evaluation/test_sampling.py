import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.bpe import Tokenizer
from shared.bpe.vocabulary import AddedToken
from shared.lm import ModelFolderError, load_model_folder
from trainer.errors import UsageError
from trainer.evaluation.sampling import encode_prompt, stream_text
from trainer.settings.train import TrainSettings
from trainer.training.trainer import train


@pytest.fixture
def model(settings: TrainSettings, change: Callable[..., TrainSettings]) -> Path:
    return train(change(settings, max_steps=40))


def test_the_same_seed_gives_the_same_text(model: Path) -> None:
    one, same, other = (
        "".join(stream_text(model, "the", max_tokens=10, seed=seed, temperature=1.5)) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_a_checkpoint_speaks_like_the_finished_model(model: Path, settings: TrainSettings) -> None:
    checkpoint = settings.output / "checkpoints" / "step-00000040"
    assert list(stream_text(checkpoint, "the", max_tokens=8, seed=0)) == list(
        stream_text(model, "the", max_tokens=8, seed=0)
    )


def greedy_ids(model: Path, count: int) -> list[int]:
    """The most likely ids after "the", one by one and without the cache."""
    folder = load_model_folder(model)
    ids = folder.tokenizer.encode("the")
    start = len(ids)
    for _ in range(count):
        ids.append(int(folder.model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[start:]


def test_greedy_text_is_the_likeliest_ids(model: Path) -> None:
    text = "".join(stream_text(model, "the", max_tokens=8, seed=0, temperature=0))
    assert text == "the" + Tokenizer.from_files(model).decode(greedy_ids(model, 8))


def test_it_stops_at_an_end_of_text_id_of_the_folder(model: Path) -> None:
    """Once the last of the greedy ids counts as an end, those before its first appearance are left."""
    ids = greedy_ids(model, 8)
    (model / "checksums.json").unlink()  # since it is changed on purpose
    file = model / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ids[-1]}))
    text = "".join(stream_text(model, "the", max_tokens=8, seed=0, temperature=0))
    assert text == "the" + Tokenizer.from_files(model).decode(ids[: ids.index(ids[-1])])


def test_a_prompt_begins_as_the_tokenizer_says(tokenizer_folder: Path) -> None:
    """As the services encode it: a model that was trained with a begin-of-text id goes wrong without."""
    vocabulary = Tokenizer.from_files(tokenizer_folder).vocabulary
    start = AddedToken(max(token.id for token in vocabulary.added) + 1, "<s>")
    added = (*vocabulary.added, start)
    tokenizer = Tokenizer(replace(vocabulary, added=added, prefix=(start.id,), bos="<s>"))
    assert encode_prompt(tokenizer, "the", 16) == [start.id, *tokenizer.encode("the")]
    assert encode_prompt(tokenizer, "", 16) == [start.id]


def test_an_empty_prompt_begins_a_document(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    assert encode_prompt(tokenizer, "", 16) == [tokenizer.end_of_text_id]


def test_a_special_token_in_the_prompt_is_plain_text(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    assert tokenizer.end_of_text_id not in encode_prompt(tokenizer, "<|endoftext|>", 64)


def test_a_prompt_that_fills_the_context_is_refused(tokenizer_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"at most 3 tokens, .* found "):
        encode_prompt(Tokenizer.from_files(tokenizer_folder), "xyzxyz", 4)


def test_a_folder_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=str(tmp_path)):
        next(stream_text(tmp_path, "x", max_tokens=1, seed=0))


def test_fewer_than_no_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-tokens must be at least 0; got -1"):
        next(stream_text(tmp_path, "x", max_tokens=-1, seed=0))
