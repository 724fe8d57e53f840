"""The engine process, which owns the model."""
