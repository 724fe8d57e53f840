"""Two CUDA devices that compute on the CPU: torch's rules for devices hold, and values are real.

A tensor on them is a wrapper whose device is cuda:0 or cuda:1, around a tensor on the CPU. What a GPU would refuse is
refused: tensors of several devices in one operation, NumPy's view of one, sums whose order no algorithm fixes where
deterministic ones are asked for. A graph records what runs on its own device, and replays that. Kernels, streams and
memory are not those of a GPU, so speed, rounding and races are not seen here.

torch itself asks for a device guard and for hooks, which no build without CUDA has: some lines of C++ give it both.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

_GUARD = """
#include <new>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
static thread_local DeviceIndex current = 0;
struct Guard : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  Device exchangeDevice(Device d) const override { Device old = getDevice(); current = d.index(); return old; }
  void setDevice(Device d) const override { current = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  Stream getStream(Device d) const noexcept override { return Stream(Stream::DEFAULT, d); }
  DeviceIndex deviceCount() const noexcept override { return 2; }
};
struct Hooks : at::CUDAHooksInterface {  // has no members, so that it fits where the base was
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};
static void put(const impl::DeviceGuardImplInterface* guard) {
  impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(guard);
}
static void* hooks() { return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()); }
extern "C" void guard_on() { current = 0; put(new Guard()); new (hooks()) Hooks(); }
extern "C" void guard_off() { put(nullptr); new (hooks()) at::CUDAHooksInterface(); }
extern "C" int get_device() { return current; }
extern "C" void set_device(int index) { current = static_cast<DeviceIndex>(index); }
"""

# Those that may take tensors of several devices.
_MOVES = {aten.copy_.default, aten._to_copy.default}
_INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class CudaTensor(torch.Tensor):
    """Says that it is on a GPU; `values` is on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, device: torch.device) -> "CudaTensor":
        self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=device,
        )
        self.values = values
        return self  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.values!r} on {self.device}"

    def tolist(self) -> Any:
        return self.values.tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values.__reduce_ex__(protocol)  # as read with map_location="cpu"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the pretended devices")


class PretendCuda(TorchDispatchMode):
    """Runs every operation of tensors on the pretended devices.

    Attributes:
        pinned_on: The current device at each time that memory was pinned.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library
        self.pinned_on: list[int] = []
        self.graph: _Graph | None = None

    @property
    def current(self) -> int:
        return int(self._library.get_device())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # torch's own pretence, which comes after this
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        if func is aten.is_pinned.default:
            return False
        if func is aten._pin_memory.default:
            self.pinned_on.append(self.current)
            return args[0].clone()
        device = self._device_of(func, args, kwargs, leaves)
        if device is None:
            return func(*args, **kwargs)
        _refuse_what_has_no_order(func, args, device)
        result = _compute(func, args, kwargs)
        own = {id(leaf.values): leaf for leaf in leaves if isinstance(leaf, CudaTensor)}

        def wrapped(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or device.type != "cuda":
                return value
            return own.get(id(value)) if id(value) in own else CudaTensor(value, device)

        result = tree_map(wrapped, result)
        if self.graph is not None and device == torch.device("cuda", self.graph.device):
            self.graph.recorded.append((func, args, kwargs, result))
        return result

    def _device_of(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> torch.device | None:
        """Where an operation runs; None where no pretended device has a part in it."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        asked = kwargs.get("device")
        if asked is not None:
            asked = torch.device(asked)
            if asked.type == "cuda" and asked.index is None:
                asked = torch.device("cuda", self.current)
        on_cuda = any(isinstance(tensor, CudaTensor) for tensor in tensors)
        if not on_cuda and (asked is None or asked.type != "cuda"):
            return None
        if func in _MOVES or (asked is not None and func not in _INDEXES):
            return asked if asked is not None else args[0].device
        if func in _INDEXES:  # a GPU's tensor takes indices on the CPU, but not the other way round
            tensors = [args[0], *(t for t in tensors if t.device.type != "cpu")]
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu" or tensor.ndim}
        if len(devices) > 1:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {devices}")
        (device,) = devices or {next(t.device for t in tensors if isinstance(t, CudaTensor))}
        return device


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the CPU."""

    def plain(value: Any) -> Any:
        if isinstance(value, CudaTensor):
            return value.values
        return torch.device("cpu") if isinstance(value, torch.device) else value

    return func(*tree_map(plain, args), **tree_map(plain, kwargs))


def _refuse_what_has_no_order(func: Any, args: Any, device: torch.device) -> None:
    """Raise as a GPU does (see `torch.use_deterministic_algorithms`), for what a language model may come to use."""
    if device.type != "cuda" or not torch.are_deterministic_algorithms_enabled():
        return
    name = str(func).split(".")[1]
    sums_floats = name in {"cumsum", "cumsum_"} and args[0].is_floating_point()
    weighted = name == "bincount" and len(args) > 1 and args[1] is not None
    if sums_floats or weighted or name in {"histc", "put_", "median", "kthvalue", "nll_loss2d_forward"}:
        raise RuntimeError(f"{name} does not have a deterministic implementation, but you set 'torch.use_det...'")


class _Graph:
    """`torch.cuda.CUDAGraph`: what ran on one device, to be run again on the same tensors."""

    def __init__(self) -> None:
        self.recorded: list[Any] = []
        self.device = -1

    def replay(self) -> None:
        for func, args, kwargs, result in self.recorded:
            for old, new in zip(tree_leaves(result), tree_leaves(_compute(func, args, kwargs)), strict=True):
                if isinstance(old, CudaTensor) and old.values is not new:
                    old.values.copy_(new)


@contextmanager
def pretend_cuda(folder: Path) -> Iterator[PretendCuda]:
    """Let torch have two GPUs; skips where there is no C++ compiler.

    Args:
        folder: For the compiled guard.
    """
    library = _guard(folder)
    library.guard_on()
    mode = PretendCuda(library)
    with pytest.MonkeyPatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        for name, replacement in _torch_cuda(mode, library).items():
            patch.setattr(torch.cuda, name, replacement)
        # Wrappers cannot be views of tensors from outside of inference mode.
        patch.setattr(torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else nullcontext())
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # `module.to` makes wrappers, changes none
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes one on the CPU, and moves it
        try:
            with mode:
                yield mode
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            library.guard_off()


def _guard(folder: Path) -> ctypes.CDLL:
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this build of torch has GPUs of its own")
    name = hashlib.sha256(f"{torch.__version__} {torch.__file__} {_GUARD}".encode()).hexdigest()[:16]
    target = folder / f"guard-{name}.so"
    if not target.exists():
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("torch's device guard is compiled here, and there is no C++ compiler (g++ or clang++)")
        source, home = folder / f"{name}-{os.getpid()}.cpp", Path(torch.__file__).parent
        source.write_text(_GUARD)
        compiled = source.with_suffix(".so")
        places = ["-std=c++20", f"-I{home / 'include'}", f"-L{home / 'lib'}"]
        libraries = ["-lc10", "-ltorch_cpu"]
        command = [compiler, "-shared", "-fPIC", *places, str(source), *libraries, "-o", str(compiled)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"torch's device guard does not compile here: {done.stderr[-300:]}")
        compiled.replace(target)  # whole at once, where several processes run tests
        source.unlink()
    return ctypes.CDLL(str(target))


def _torch_cuda(mode: PretendCuda, library: ctypes.CDLL) -> dict[str, Any]:
    """What replaces functions of `torch.cuda`."""

    @contextmanager
    def capture(graph: _Graph, **_: Any) -> Iterator[None]:
        graph.device, mode.graph = mode.current, graph
        try:
            yield
        finally:
            mode.graph = None

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def constantly(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    stream = SimpleNamespace(wait_stream=nothing)
    return {
        "_lazy_init": nothing,
        "is_available": constantly(True),
        "is_bf16_supported": constantly(True),
        "device_count": constantly(2),
        "current_device": lambda: mode.current,
        "set_device": lambda device: library.set_device(torch.device(device).index or 0),
        "get_device_name": constantly("a pretended GPU"),
        "get_device_capability": constantly((7, 0)),  # for which Triton, which would need a real one, is not used
        "mem_get_info": constantly((1 << 30, 1 << 31)),
        "memory_reserved": constantly(0),
        "max_memory_allocated": constantly(1),
        "synchronize": nothing,
        "get_rng_state_all": constantly([]),
        "Stream": constantly(stream),
        "current_stream": constantly(stream),
        "stream": constantly(nullcontext()),
        "Event": constantly(SimpleNamespace(record=nothing, synchronize=nothing, elapsed_time=constantly(1.0))),
        "set_sync_debug_mode": nothing,
        "graph_pool_handle": constantly((0, 0)),
        "CUDAGraph": _Graph,
        "graph": capture,
    }
