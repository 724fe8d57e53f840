from pathlib import Path

import pytest
import torch

from shared.bpe import train_bpe
from shared.lm import GenerationDefaults, ModelConfig, RopeConfig, Transformer, save_model_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, small enough to be loaded at once."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_bpe(["Once upon a time there was a fox. " * 3], 270, special_tokens=["<|endoftext|>"]).tokenizer
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=32, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2,
        head_dim=8, d_ff=32, norm_eps=1e-5, qk_norm=False, tie_embeddings=True, rope=RopeConfig(),
    )  # fmt: skip
    torch.manual_seed(0)
    save_model_folder(
        folder, model=Transformer(config), tokenizer=tokenizer, generation=GenerationDefaults(), provenance={}
    )
    return folder
