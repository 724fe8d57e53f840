from collections.abc import Callable
from pathlib import Path

import pytest

from shared.bpe import Tokenizer
from shared.lm import ModelFolderError, load_model_folder
from trainer.errors import UsageError
from trainer.sampling import encode_prompt, stream_text
from trainer.settings import TrainSettings
from trainer.training import train


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


def test_greedy_text_is_the_likeliest_ids_one_by_one(model: Path) -> None:
    """Without the cache, and decoded at once."""
    import torch

    folder = load_model_folder(model)
    ids = folder.tokenizer.encode("the")
    for _ in range(8):
        ids.append(int(folder.model(torch.tensor([ids]))[0, -1].argmax()))
        assert ids[-1] not in folder.generation.eos_token_ids
    text = "".join(stream_text(model, "the", max_tokens=8, seed=0, temperature=0))
    assert text == folder.tokenizer.decode(ids)


def test_it_stops_at_the_end_of_the_text(model: Path) -> None:
    """The toy documents have twelve words and a full stop, which the model has seen often enough to expect an end."""
    text = "".join(stream_text(model, "the cat.\n", max_tokens=3, seed=0, temperature=0))
    assert text == "the cat.\n"


def test_an_empty_prompt_begins_a_document(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    assert encode_prompt(tokenizer, "", 16) == [tokenizer.end_of_text_id]


def test_a_special_token_in_the_prompt_is_plain_text(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    assert tokenizer.end_of_text_id not in encode_prompt(tokenizer, "<|endoftext|>", 64)


def test_a_prompt_that_fills_the_context_is_refused(tokenizer_folder: Path) -> None:
    with pytest.raises(UsageError, match="context of 4 must hold one more"):
        encode_prompt(Tokenizer.from_files(tokenizer_folder), "xyzxyz", 4)


def test_a_folder_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=str(tmp_path)):
        next(stream_text(tmp_path, "x", max_tokens=1, seed=0))
