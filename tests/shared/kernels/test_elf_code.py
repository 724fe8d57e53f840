"""Object files loaded without LLVM: what they define is where LLVM would have put it, strange ones are refused."""

import ctypes
import platform

import pytest
from llvmlite import binding as llvm

from shared.bpe import kernels
from shared.kernels import elf_code, object_file

pytestmark = pytest.mark.skipif(not elf_code.is_supported(), reason="for x86-64 Linux")
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)
SQUARES = """
@squares = internal constant [4 x i64] [i64 0, i64 1, i64 4, i64 9]
@table = constant [2 x i64*] [i64* getelementptr ([4 x i64], [4 x i64]* @squares, i64 0, i64 2), i64* null]
declare double @log(double)
define i64* @entry_of_table() { %p = load i64*, i64** getelementptr ([2 x i64*], [2 x i64*]* @table, i64 0, i64 0)
  ret i64* %p }
define double @log_of_square(i64 %n) {
  %p = getelementptr [4 x i64], [4 x i64]* @squares, i64 0, i64 %n
  %square = load i64, i64* %p
  %x = sitofp i64 %square to double
  %y = call double @log(double %x)
  ret double %y }
"""


def object_code(source: str, model: str = "jitdefault") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(codemodel=model, jit=True, opt=0)
    module = llvm.parse_assembly(source)
    module.triple = "x86_64-unknown-linux-gnu"
    code: bytes = machine.emit_object(module)
    return code


@pytest.mark.parametrize("model", ["jitdefault", "large"])
def test_constants_and_functions_of_c_are_found(model: str) -> None:
    addresses = elf_code.load(object_code(SQUARES, model))
    assert {"log_of_square", "entry_of_table", "table"} <= addresses.keys()
    assert FUNCTION(addresses["log_of_square"])(3) == pytest.approx(2.1972245773362196, rel=1e-15)  # ln 9
    entry = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_int64))(addresses["entry_of_table"])()
    assert entry[0] == 4


def test_every_kernel_of_the_tokenizer_is_where_llvm_finds_one() -> None:
    code = object_file.of(kernels.__name__)._find()
    assert code is not None
    found = elf_code.load(code)
    defined = [name for name in found if name.startswith(f"{kernels.__name__}.")]
    assert len(defined) > 10
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine(jit=True)
    )
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    start, theirs = min(found[name] for name in defined), min(map(engine.get_function_address, defined))
    assert {name: found[name] - start for name in defined} == {
        name: engine.get_function_address(name) - theirs for name in defined
    }


def test_memory_with_code_cannot_be_written() -> None:
    address = elf_code.load(object_code(SQUARES))["log_of_square"]
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123
        for line in maps:
            span, permissions, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                assert permissions == "r-xp"
                return
    pytest.fail("it lies nowhere")


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (b"", "not an object file"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "not an object file"),
        ("declare void @no_such_function() define void @f() { call void @no_such_function() ret void }", "no_such_fun"),
        ("@counter = global i64 1", "can be written"),
    ],
)
def test_what_kernels_never_have_is_refused(code: bytes | str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        elf_code.load(object_code(code) if isinstance(code, str) else code)


def test_it_is_for_one_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not elf_code.is_supported()
