"""GPUs by name: their memory and the peak rates of their data sheets."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import UsageError

_MIB = 1 << 20
_TERA = 1e12


@dataclass(frozen=True)
class Gpu:
    """What a GPU has. Rates are peaks of dense matrix products with sums in float32, in operations a second.

    Attributes:
        name: The maker's.
        memory: Bytes in all, as nvidia-smi reports them; the CUDA context takes some of it.
        float32: Of true float32: PyTorch's default, and what `--dtype float32` runs.
        tf32: Of float32 rounded to 10 bits, which PyTorch runs where it is switched on; None where there is none.
        bfloat16: None where there is none. Equal to that of float16 where there is.
        source: The maker's document that has the rates.
    """

    name: str
    memory: int
    float32: float
    tf32: float | None
    bfloat16: float | None
    source: str


def _gpu(name: str, mib: int, rates: tuple[float, float | None, float | None], source: str) -> Gpu:
    """A GPU from its MiB and its TFLOP/s in float32, TF32 and bfloat16."""
    float32, tf32, bfloat16 = (None if rate is None else round(rate * _TERA) for rate in rates)
    assert float32 is not None
    return Gpu(name, mib * _MIB, float32, tf32, bfloat16, f"NVIDIA, {source}")


_A100, _HOPPER = (19.5, 156.0, 312.0), (66.9, 494.7, 989.4)

# The L4's sheet has rates with sparsity, which are halved here. GeForce cards sum in float32 at half their rate.
GPUS: Mapping[str, Gpu] = {
    "a100-40g": _gpu("A100 40 GB", 40_960, _A100, "A100 data sheet"),
    "a100-80g": _gpu("A100 80 GB", 81_920, _A100, "A100 data sheet"),
    "b200": _gpu("B200 (HGX)", 183_359, (80.0, 1_100.0, 2_250.0), "Blackwell architecture technical brief"),
    "h100": _gpu("H100 SXM", 81_559, _HOPPER, "H100 architecture white paper"),
    "h200": _gpu("H200 SXM", 143_771, _HOPPER, "H200 data sheet (the H100's rates)"),
    "l4": _gpu("L4", 23_034, (30.3, 60.0, 121.0), "L4 data sheet"),
    "rtx-2060": _gpu("GeForce RTX 2060", 6_144, (6.45, None, None), "product page: 2 x 1,920 cores x 1.68 GHz"),
    "rtx-3090": _gpu("GeForce RTX 3090", 24_576, (35.6, 35.6, 71.0), "GA102 architecture white paper"),
    "rtx-4090": _gpu("GeForce RTX 4090", 24_564, (82.6, 82.6, 165.2), "Ada architecture white paper"),
    "rtx-5090": _gpu("GeForce RTX 5090", 32_607, (104.8, 104.8, 209.5), "RTX Blackwell architecture white paper"),
    "t4": _gpu("T4", 15_360, (8.1, None, None), "T4 data sheet"),
    "v100-16g": _gpu("V100 SXM2 16 GB", 16_160, (15.7, None, None), "V100 data sheet"),
    "v100-32g": _gpu("V100 SXM2 32 GB", 32_510, (15.7, None, None), "V100 data sheet"),
}
"""The GPUs that `--machine` knows."""


def find_gpu(name: str) -> Gpu:
    """The GPU with this name.

    Raises:
        UsageError: there is none; names the nearest ones.
    """
    if name in GPUS:
        return GPUS[name]
    asked = name.lower()
    begin = [known for known in GPUS if asked and known.startswith(asked)]
    close = begin or difflib.get_close_matches(asked, GPUS, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(
        f"unknown machine {name!r}{hint} (known: {', '.join(GPUS)}; describe any other by --memory and --peak-flops)"
    )
