"""Encoding and learning where the memory that is left does not suffice, or only just: a result or an error, no hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# `work` is done once, and again with so many bytes left; it gives what it gave before, or says that memory is short.
PROGRAM = """
import faulthandler, resource
from unittest.mock import patch
from shared.bpe import train_bpe
from shared.bpe.encoding import encoder
from shared.bpe.training import Texts
from shared.bpe import train_bpe_from_sources

faulthandler.dump_traceback_later(100, exit=True)
text = "".join(f"The fox number {{n}} said: it's {{n * n % 997}} o'clock, isn't it?\\n" for n in range(60_000))
tokenizer = train_bpe([text[:100_000]], 400).tokenizer
texts = [text[start : start + 10_000] for start in range(0, len(text), 10_000)]
source = Texts("texts", lambda longest: map(str.encode, texts))
work = {{
    "one text": lambda: tokenizer.encode_to_numpy(text).tobytes(),
    "many texts": lambda: b"".join(ids.tobytes() for ids in tokenizer.encode_batch_to_numpy(texts)),
    "learning": lambda: train_bpe_from_sources([source], 300, threads=4).tokenizer.fingerprint,
}}[{name!r}]
with patch.object(encoder, "available_processors", lambda: 4):
    expected = work()
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    outcomes = set()
    for left in (0, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 26, 1 << 30):
        resource.setrlimit(resource.RLIMIT_AS, (size + left, resource.RLIM_INFINITY))
        for _ in range(3):
            try:
                outcomes.add("the same" if work() == expected else "another")
            except MemoryError:
                outcomes.add("MemoryError")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    outcomes.add("the same" if work() == expected else "another")
print(*outcomes, sep=", ")
"""
COLD = """
import resource
import numpy
from shared.bpe import train_bpe
from shared.kernels import elf_code
elf_code.is_supported = lambda: {elf}
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + ({left} << 20), resource.RLIM_INFINITY))
try:
    train_bpe(["a b"], 300)
finally:  # room to print what was raised
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

pytestmark = [
    pytest.mark.extended,
    pytest.mark.case("D30"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's"),
]


def run(program: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=200, check=False
    )


@pytest.mark.parametrize("name", ["one text", "many texts", "learning"])
def test_it_ends_with_the_same_result_or_says_that_memory_is_short(name: str) -> None:
    process = run(PROGRAM.format(name=name))
    assert process.returncode == 0, process.stderr
    assert set(process.stdout.strip().split(", ")) <= {"MemoryError", "the same"}


@pytest.mark.parametrize(
    ("elf", "left", "message"),
    [
        pytest.param(True, 3, "MemoryError: Unable to allocate", id="loader of ours"),
        pytest.param(False, 50, "MemoryError: not enough memory to load LLVM, which runs compiled code", id="LLVM"),
    ],
)
def test_a_start_without_memory_says_so_and_does_not_say_that_a_library_is_missing(
    elf: bool, left: int, message: str
) -> None:
    process = run(COLD.format(elf=elf, left=left))
    assert process.returncode == 1
    assert message in process.stderr.splitlines()[-1]
