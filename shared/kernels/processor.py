"""What compiled code depends on: this machine's processor, and levels that many processors have in common.

Linux says what the processor is, so that code for it is found without LLVM.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

_CPU_INFO = Path("/proc/cpuinfo")
_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = (*_V4, "avx512vnni")
_VBMI2 = (*_VNNI, "avx512vbmi2")
_BFLOAT16 = (*_VBMI2, "avx512bf16")
_TILES = (*_BFLOAT16, "amx-tile", "amx-bf16")
_NAMES_IN_LINUX = {
    "sse3": "pni",
    "sahf": "lahf_lm",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "avx512vnni": "avx512_vnni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bf16": "avx512_bf16",
}


class Level(NamedTuple):
    """A set of instructions, as https://gitlab.com/x86-psABIs/x86-64-ABI (3.1.1) defines some.

    Attributes:
        name: A short one, for files.
        processor: LLVM's name of the processor that code is compiled for.
        features: LLVM's names of all that its code may use.
    """

    name: str
    processor: str
    features: tuple[str, ...]

    @property
    def flags(self) -> frozenset[str]:
        """What /proc/cpuinfo has where the code runs."""
        spelled = (_NAMES_IN_LINUX.get(name, name) for name in self.features)
        return frozenset(name.replace("-", "_").replace(".", "_") for name in spelled)


LEVELS = (
    Level("tiles", "x86-64-v4", _TILES),  # Intel from Sapphire Rapids on
    Level("bfloat16", "x86-64-v4", _BFLOAT16),  # AMD from Zen 4 on
    Level("vbmi2", "x86-64-v4", _VBMI2),  # Ice Lake
    Level("vnni", "x86-64-v4", _VNNI),  # Cascade Lake
    Level("v4", "x86-64-v4", _V4),  # Skylake of servers
    Level("v3", "x86-64-v3", _V3),  # Haswell, Zen, and later ones without AVX-512
)
"""What images have code for: all x86-64 processors with AVX2. The best first."""


def fitting(flags: frozenset[str]) -> list[Level]:
    """The levels whose code runs on a processor with these flags, the best first."""
    return [level for level in LEVELS if level.flags <= flags]


@cache
def flags() -> frozenset[str]:
    """What this machine's processor can do, as /proc/cpuinfo names it; empty where there is none, or not on x86."""
    return frozenset(_cpu_info().get("flags", "").split())


@cache
def description() -> str | None:
    """The processor and all that it can do; None where Linux does not say."""
    info = _cpu_info()
    if "flags" not in info:
        return None
    return ",".join(info.get(name, "") for name in ("vendor_id", "cpu family", "model", "flags"))


def _cpu_info() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor."""
    try:
        first = _CPU_INFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
