"""Token files of a made-up language with 10,000 tokens: what the tokens say makes no difference to a step's time."""

import random
from pathlib import Path

from benchmarks.training.shape import VOCAB_SIZE
from shared.bpe import Tokenizer
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files


def make_data(folder: Path) -> Path:
    """Write text, tokenizer and token files; returns the folder for `train --data`."""
    draw = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(2, 5))) for _ in range(20_000)]
    text = folder / "text.txt"
    documents = (" ".join(draw.choices(words, k=200)) + "\n<|endoftext|>\n" for _ in range(2_000))
    text.write_text("".join(documents), encoding="utf-8")
    train_tokenizer([text], folder / "tokenizer", VocabSettings(vocab_size=VOCAB_SIZE))
    encode_files(
        [text], Tokenizer.from_files(folder / "tokenizer"), folder / "tokens", EncodeSettings(val_fraction=0.01)
    )
    return folder / "tokens"
