"""What tests of Triton's kernels need: a GPU, or the interpreter, which Triton chooses when it is imported."""

import os
import sys
from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

NEED_TRITON = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: make gpu"),
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
        reason="Triton was imported before, without its interpreter: set TRITON_INTERPRET=1",
    ),
]
