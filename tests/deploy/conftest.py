"""A tiny model folder and services as processes."""

from tests.services.conftest import model_dir, process, tokenizer

__all__ = ["model_dir", "process", "tokenizer"]
