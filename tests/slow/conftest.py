"""The fixtures of the services' fast tests: a tiny model folder, and services as processes."""

from tests.services.conftest import model_dir, process, slow, tokenizer
from tests.services.inference.conftest import compiled_engine

__all__ = ["compiled_engine", "model_dir", "process", "slow", "tokenizer"]
