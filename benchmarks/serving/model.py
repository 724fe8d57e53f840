"""A model folder with random weights, by default of the shape that CS336 trains on TinyStories."""

from itertools import islice, product
from pathlib import Path

import torch

from benchmarks.training.shape import CONTEXT, D_FF, HEADS, LAYERS, VOCAB_SIZE, WIDTH
from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder

_EOS = "<|endoftext|>"
_INITIALIZER_RANGE = 0.05  # so that some tokens are likelier than others, as with a trained model


CS336 = ModelConfig(
    vocab_size=VOCAB_SIZE,
    context_length=CONTEXT,
    d_model=WIDTH,
    num_layers=LAYERS,
    num_heads=HEADS,
    num_kv_heads=HEADS,
    head_dim=WIDTH // HEADS,
    d_ff=D_FF,
    tie_embeddings=False,
    initializer_range=_INITIALIZER_RANGE,
)


def make_model(folder: Path, config: ModelConfig = CS336) -> Path:
    """Write a folder with random weights and a tokenizer of as many ids as the model has, and return it."""
    torch.manual_seed(0)
    save_model_folder(
        folder,
        model=Transformer(config),
        tokenizer=tokenizer_of(config.vocab_size),
        generation=GenerationDefaults(eos_token_ids=(config.vocab_size - 1,)),
        provenance={},
    )
    return folder


def tokenizer_of(size: int) -> Tokenizer:
    """All bytes, and as many pairs of bytes as there is room for."""
    single = [bytes([byte]) for byte in range(256)]
    merges = tuple(islice(product(range(256), repeat=2), size - 257))
    tokens = dict(enumerate(single + [single[left] + single[right] for left, right in merges]))
    added = (AddedToken(size - 1, _EOS),)
    return Tokenizer(Vocabulary(tokens=tokens, merges=merges, added=added, pattern=PATTERNS["gpt2"], eos=_EOS))
