"""The fixtures of the services' fast tests: a tiny model folder, and services as processes."""

from tests.services.conftest import compiled_engine, model_dir, process, slow, tokenizer

__all__ = ["compiled_engine", "model_dir", "process", "slow", "tokenizer"]
