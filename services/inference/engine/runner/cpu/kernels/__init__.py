"""The compiled step of the engine: Python compiled by Numba, over plain arrays. Nothing here knows of requests."""

TITLE = "the engine"
