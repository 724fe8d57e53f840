"""Text, a tokenizer, token files and a small model, made in seconds."""

import random
from pathlib import Path
from typing import NamedTuple

from shared.bpe import Tokenizer
from trainer.settings.encode import EncodeSettings
from trainer.settings.train import (
    CheckpointSettings,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
)
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files

CONTEXT, BATCH = 128, 16


class Inputs(NamedTuple):
    """What is in the folder of a benchmark."""

    folder: Path

    @property
    def text(self) -> Path:
        """1 MB of words."""
        return self.folder / "text.txt"

    @property
    def part(self) -> Path:
        """A part of it, to evaluate."""
        return self.folder / "part.txt"

    @property
    def tokenizer(self) -> Path:
        """Of 2,000 tokens."""
        return self.folder / "tokenizer"

    @property
    def tokens(self) -> Path:
        """The text as token files."""
        return self.folder / "tokens"

    @property
    def model(self) -> Path:
        """A model folder, trained for a step."""
        return self.training(1).output / "model"

    def training(self, steps: int) -> TrainSettings:
        """A run of a model with 2.5 million parameters."""
        return TrainSettings(
            data=self.tokens,
            output=self.folder / f"run-{steps}",
            model=ModelSettings(d_model=192, num_layers=4, num_heads=6, context_length=CONTEXT),
            optimization=OptimizationSettings(max_steps=steps, batch_size=BATCH),
            watch=WatchSettings(eval_interval=0, sample_interval=0),
            checkpoints=CheckpointSettings(checkpoint_interval=0, overwrite=True),
            machine=MachineSettings(device="cpu", dtype="float32"),
        )


def make_inputs(folder: Path) -> None:
    """Write all of it."""
    from trainer.training.trainer import train

    inputs = Inputs(folder)
    draw = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(5_000)]
    documents = [" ".join(draw.choices(words, k=200)) + "\n<|endoftext|>\n" for _ in range(1_000)]
    inputs.text.write_text("".join(documents), encoding="utf-8")
    inputs.part.write_text("".join(documents[:20]), encoding="utf-8")
    train_tokenizer([inputs.text], inputs.tokenizer, VocabSettings(vocab_size=2_000))
    encode_files(
        [inputs.text], Tokenizer.from_files(inputs.tokenizer), inputs.tokens, EncodeSettings(val_fraction=0.01)
    )
    train(inputs.training(1))
