"""A small tokenizer for the tests of token files."""

import pytest

from shared.bpe import Tokenizer, train_bpe


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    text = "the cat sat on the mat, and the dog sat by the cat.\n" * 9
    return train_bpe([text], 300, special_tokens=["<|endoftext|>"]).tokenizer
