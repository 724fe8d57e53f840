"""The examples in docstrings give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import shared.bpe
import shared.system
from shared.bpe import PATTERNS, train_bpe

MODULES = [
    info.name
    for package in (shared.bpe, shared.system)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if ".kernels" not in info.name
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    known = {"train_bpe": train_bpe, "PATTERNS": PATTERNS, "tokenizer": train_bpe(["low low lower"], 300).tokenizer}
    found = doctest.testmod(importlib.import_module(name), extraglobs=known, optionflags=doctest.ELLIPSIS)
    assert not found.failed
