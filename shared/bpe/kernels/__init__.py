"""The compiled core of the tokenizer: Python compiled by Numba. Nothing here knows of files, JSON or HTTP."""

TITLE = "the tokenizer"
