"""Fixtures that every part of the tree may use."""

import inspect
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from shared.bpe import kernels
from shared.kernels import warm
from tests.clusters import ray_nodes, s3

if TYPE_CHECKING:
    from tests.pretend_cuda import PretendCuda  # imports torch

__all__ = ["ray_nodes", "s3"]

# No time limit for an example or for drawing it, since machines stall; the same examples each time where a failure
# would block a landing.
settings.register_profile(
    "ownlm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("ownlm")

# A job in the background of a shell ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; only the question imports torch."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: python -m benchmarks.gpu"))


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile the kernels before the first test rather than within it: some tests, and services, are timed."""
    warm.main([kernels.__name__])


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> Iterator[None]:
    """Let servers take minutes: where no timeout is named, httpx gives them five seconds, and machines stall."""
    with pytest.MonkeyPatch.context() as patch:
        default = inspect.signature(httpx.get).parameters["timeout"].default  # one object, shared by all of httpx
        for name in ("connect", "read", "write", "pool"):
            patch.setattr(default, name, 240.0)
        yield


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """Name the test that leaves torch's gradients off for all that come after it in this process."""
    yield
    torch: Any = sys.modules.get("torch")  # which most tests do without
    if torch is not None and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("gradients were left off")


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> "Iterator[PretendCuda]":
    """Two GPUs that compute on the CPU."""
    from tests.pretend_cuda import pretend_cuda

    with pretend_cuda(request.config.cache.mkdir("pretend_cuda")) as mode:
        yield mode


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of reference data: `OWNLM_DATA`, else `shared/data` beside the checkout; skips where there is none."""
    folder = Path(os.environ.get("OWNLM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the reference data is not on this machine: {folder} (set OWNLM_DATA)")
    return folder
