"""Levels of processors: what Linux says of one is what LLVM says, and code for each level computes the same."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from shared.bpe import kernels
from shared.kernels import elf_code, object_file, processor

ROOT = Path(__file__).resolve().parents[3]
ENCODE = """
import sys
from shared.kernels.object_file import ObjectFile
ObjectFile.places = lambda self: iter(())  # as in an image, whose code is made on another machine
from shared.bpe import Tokenizer
words = ["low", "lower", "newest", "wid\\u00e9st", "\\U0001f600"]
merges = [(b"l", b"o"), (b"lo", b"w"), (b"e", b"r")]
vocabulary = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
tokenizer = Tokenizer.from_vocab(dict(enumerate(vocabulary)), merges, pattern="gpt2")
ids = tokenizer.encode(" ".join(words) * 50)
assert tokenizer.decode(ids) == " ".join(words) * 50
print(hash(tuple(ids)), "llvmlite" in sys.modules)
"""


@pytest.mark.skipif(not elf_code.is_supported(), reason="for x86-64 Linux")
def test_linux_and_llvm_agree_on_what_this_processor_can_do() -> None:
    """Each level needs flags that Linux spells in its own way: one that is misspelled would never be found."""
    theirs = {name for name, has in llvm.get_host_cpu_features().items() if has}
    fitting = [level.name for level in processor.LEVELS if set(level.features) <= theirs]
    assert [level.name for level in processor.fitting(processor.flags())] == fitting


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        # In Linux' spelling, what Broadwell, Skylake-SP and Cascade Lake have, and Ivy Bridge has not.
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe", "v3"),
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512dq avx512cd avx512bw avx512vl", "v4"),
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni", "vnni"),
        ("avx bmi1 f16c fma", None),
    ],
)
def test_the_best_level_that_runs_is_first(flags: str, best: str | None) -> None:
    old = "cx16 popcnt lahf_lm pni sse4_1 sse4_2 ssse3"
    levels = processor.fitting(frozenset(f"{old} {flags}".split()))
    assert (levels[0].name if levels else None) == best


def test_a_machine_without_cpuinfo_is_described_by_llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "absent")
    monkeypatch.setattr(processor, "description", processor.description.__wrapped__)
    assert processor.description() is None
    assert llvm.get_host_cpu_name() in object_file._description_by_llvm()
    assert object_file.of(kernels.__name__)._name().startswith("kernels-")


def test_code_for_a_level_is_taken_where_there_is_none_for_this_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = object_file.ObjectFile(kernels.__name__)
    monkeypatch.setattr(package, "_sources", lambda: tmp_path)
    monkeypatch.setattr(package, "places", lambda: iter(()))
    monkeypatch.setattr(object_file, "compiled_in_child", lambda package, title, level: level.name.encode())
    fitting = processor.LEVELS[-2:]
    monkeypatch.setattr(processor, "fitting", lambda flags: list(fitting))
    assert package._find() is None
    for level in (processor.LEVELS[0], *reversed(fitting)):
        content = package.compile_for(level).read_bytes()
        assert content[object_file._DIGEST_BYTES :] == level.name.encode()
        assert hashlib.sha256(level.name.encode()).digest() == content[: object_file._DIGEST_BYTES]
        assert package._find() == (None if level is processor.LEVELS[0] else level.name.encode())


def test_without_code_and_compiler_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    package = object_file.ObjectFile(kernels.__name__)
    monkeypatch.setattr(package, "_find", lambda: None)
    monkeypatch.setattr(object_file, "_version_of_llvm", lambda: None)
    with pytest.raises(RuntimeError, match=r"the tokenizer: .*AVX2.*install numba and llvmlite"):
        package.load()


@pytest.mark.slow
@pytest.mark.skipif(not elf_code.is_supported(), reason="for x86-64 Linux")
def test_every_level_that_runs_here_computes_the_same() -> None:
    package = object_file.of(kernels.__name__)
    outputs = set()
    for level in processor.fitting(processor.flags()):
        package.compile_for(level)
        only = f"from shared.kernels import processor as p\np.fitting = lambda _: [p.Level(*{tuple(level)})]"
        done = subprocess.run(
            [sys.executable, "-c", f"{only}\n{ENCODE}"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        outputs.add(done.stdout)
        package._portable(level).unlink()
    assert len(outputs) == 1
    assert outputs.pop().endswith("False\n"), "LLVM's library is not loaded"
