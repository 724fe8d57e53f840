"""`training.json` of a model folder, written by the trainer and read by the inference service: how it was trained.

Its parts are in docs/reference/files.md. Unlike the other files it decides nothing: without it, or with one that
cannot be used, the model is served all the same.
"""

TRAINING_FILE = "training.json"
TRAINING_FILE_VERSION = 1
LARGEST_TRAINING_FILE = 64 << 10
"""Bytes."""
