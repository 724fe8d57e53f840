"""Compiling in a process of its own, which takes the compiler's memory with it when it ends."""

import hashlib
import os
import signal
import subprocess
import sys

from shared.kernels.processor import Level

_DIGEST_BYTES = hashlib.sha256().digest_size
_SIGNS_OF_NO_MEMORY = ("MemoryError", "out of memory", "failed to map segment", "Cannot allocate memory")


def compiled_in_child(package: str, title: str, level: Level | None = None) -> bytes:
    """The object file of a set of kernels, by `building.build` in a child.

    Args:
        package: The set.
        title: Whose kernels they are, for errors.
        level: Of processors that it is for; this machine's if None.

    Raises:
        MemoryError: Memory did not suffice, or the system ended the child, as it does where memory is short.
        RuntimeError: The child could not be started, or failed; the message says why.
    """
    # The child ends at the end of its standard input: with this process, however that ends.
    child_input, our_end = os.pipe()
    try:
        child = subprocess.run(  # noqa: S603  # our own command
            [sys.executable, "-m", "shared.kernels.building", package],
            stdin=child_input,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"} | _target(level),
            start_new_session=True,  # Ctrl-C is this process's to report
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"the compiler of {title} cannot be started: {error}") from error
    finally:
        os.close(child_input)
        os.close(our_end)
    digest, code = child.stdout[:_DIGEST_BYTES], child.stdout[_DIGEST_BYTES:]
    if child.returncode == 0 and hashlib.sha256(code).digest() == digest:
        return code
    errors = child.stderr.decode(errors="replace").strip()
    reason = _reason(child.returncode, errors)
    if child.returncode == -signal.SIGKILL or any(sign in reason for sign in _SIGNS_OF_NO_MEMORY):
        raise MemoryError(f"not enough memory to compile {title}, which takes up to 300 MB ({reason})")
    raise RuntimeError(f"compiling {title} failed: {reason}\n{errors}")


def _target(level: Level | None) -> dict[str, str]:
    """Numba's settings for a level."""
    if level is None:
        return {}
    features = ",".join(f"+{name}" for name in level.features)
    return {"NUMBA_CPU_NAME": level.processor, "NUMBA_CPU_FEATURES": features}


def _reason(return_code: int, errors: str) -> str:
    """The child's last words, or the signal that ended it."""
    if errors:
        return errors.splitlines()[-1]
    return signal.strsignal(-return_code) or f"signal {-return_code}" if return_code < 0 else f"exit code {return_code}"
