"""Two torchrun agents with a rendezvous, each with a disk of its own: one of them is killed and comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
from safetensors.torch import load_file

from tests.ports import free_port
from trainer.checkpoints.store import CheckpointStore

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

ROOT = Path(__file__).parents[3]
MODEL = "--d-model 16 --num-layers 2 --num-heads 1 --d-ff 16 --context-length 16 --batch-size 4 --sample-interval 0"
STEPS = 160


def wait_for(condition: Callable[[], Any], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def train(options: str, launcher: str, log: Path) -> "subprocess.Popen[bytes]":
    command = f"{sys.executable} -m torch.distributed.run {launcher} -m trainer train {MODEL} {options} --device cpu"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Else the first agent takes its store of the first round for that of all, and one that comes back never joins.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with log.open("ab") as file:
        return subprocess.Popen(command.split(), stdout=file, stderr=file, env=environment, start_new_session=True)


def kill(agent: "subprocess.Popen[bytes]") -> None:
    """All processes of a machine."""
    with suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    agent.wait()


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "parallel", [pytest.param("ddp", marks=pytest.mark.ray), pytest.param("fsdp", marks=pytest.mark.slow)]
)
def test_a_machine_that_is_killed_comes_back(
    token_folder: Path, tmp_path: Path, parallel: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and checkpoints are in the object store alone. The weights are those of an uninterrupted run to the bit."""
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    fsspec.filesystem("s3").put(str(token_folder), f"{s3}/{parallel}/tokens", recursive=True)
    options = f"--data {s3}/{parallel}/tokens --max-steps {STEPS} --checkpoint-interval 20 --parallel {parallel}"
    alone = train(f"{options} --output {tmp_path / 'alone'}", "--nproc-per-node 2", tmp_path / "alone.log")
    url = f"{s3}/{parallel}/run"
    launcher = (
        f"--nnodes 2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-id {parallel} "
        f"--rdzv-endpoint 127.0.0.1:{free_port()} --local-addr 127.0.0.1"
    )

    def start(machine: int) -> "subprocess.Popen[bytes]":
        output = f"--output {tmp_path / str(machine)} --checkpoint-store {url} --auto-resume"
        return train(f"{options} {output}", launcher, tmp_path / f"{machine}.log")

    agents = [start(0)]
    try:
        wait_for((tmp_path / "0.log").exists)
        time.sleep(1)  # the first one holds the rendezvous
        agents.append(start(1))
        store = CheckpointStore(url)
        wait_for(lambda: max(store.steps(), default=0) >= 40)
        kill(agents[1])
        agents[1] = start(1)
        logs = [(tmp_path / f"{name}.log") for name in (0, 1, "alone")]
        for agent in [*agents, alone]:
            assert agent.wait(250) == 0, "\n".join(log.read_text() for log in logs)
    finally:
        for agent in [*agents, alone]:
            kill(agent)
    assert "resumed from" in "".join(log.read_text() for log in logs[:2])
    expected = weights(tmp_path / "alone" / "model")
    [finished] = (path for n in (0, 1) if (path := tmp_path / str(n) / "model").exists())
    found = weights(finished)
    assert all(found[name].equal(expected[name]) for name in expected)
    assert store.steps() == [STEPS, STEPS - 20]
    copy = store.download(STEPS, tmp_path / "copy")
    assert weights(copy)["model.norm.weight"].equal(expected["model.norm.weight"])
