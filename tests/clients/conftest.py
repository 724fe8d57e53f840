"""The fixtures of the services' tests: a tiny model folder, services as processes, a model that follows a script."""

from tests.services.conftest import compiled_engine, model_dir, process, serve, tokenizer
from tests.services.inference.conftest import pieces_tokenizer, scripted

__all__ = ["compiled_engine", "model_dir", "pieces_tokenizer", "process", "scripted", "serve", "tokenizer"]
