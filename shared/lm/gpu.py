"""Whether torch can use a GPU, and if not, why. Only the second question imports torch."""

import ctypes


def has_cuda_driver() -> bool:
    """Whether NVIDIA's driver is installed, by its library, without which torch finds no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def gpu_unavailable_reason() -> str | None:
    """Torch's reason why it cannot use a CUDA device; None if it can. `is_available` gives no reason."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return None
