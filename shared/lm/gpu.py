"""Whether there is a GPU for torch, and why not. torch is imported only to answer the second."""

import ctypes


def has_cuda_driver() -> bool:
    """Whether torch may see a GPU at all: it does so through this library, which NVIDIA's driver brings along."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def why_no_gpu() -> str | None:
    """Why torch can use no CUDA device, in its own words; None where it can. `is_available` does not say."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return None
