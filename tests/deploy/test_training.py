"""The examples in deploy/training: each is run with programs that only note what they were called with."""

import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.docs.pages import ROOT
from trainer.cli import app
from trainer.storage.cache import cache_folder

FOLDER = ROOT / "deploy" / "training"
KNOWN_TO_SKYPILOT = {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
PLACE = {"DATA": "s3://b/tokens", "STORE": "s3://b/run", "GPUS": "8"}
SLURM = {
    "SLURM_JOB_NODELIST": "gpu-[7-8]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_ID": "41",
    "SLURM_CPUS_PER_TASK": "32",
}


def jobset() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    return content


def notes(name: str) -> str:
    """A program that notes its arguments."""
    return f'printf "%s\\0" "$@" >> {name}.calls; echo >> {name}.calls'


class Ran(NamedTuple):
    """What a script did: its exit code, the calls of each program, and the environment of torchrun."""

    code: int
    calls: dict[str, list[list[str]]]
    environment: dict[str, str]


def run(script: str, folder: Path, torchrun_code: int = 0, **environment: str) -> Ran:
    programs = {
        "torchrun": f"{notes('torchrun')}; env -0 > environment; exit {torchrun_code}",
        "srun": f'{notes("srun")}; while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": f"{notes('scontrol')}; echo gpu-7; echo gpu-8",
        "uv": f'{notes("uv")}; mkdir -p "${{!#}}/bin"; ln -s "$PWD/pip" "${{!#}}/bin"',
        "pip": notes("pip"),
    }
    for name, content in programs.items():
        (folder / name).write_text(f"#!/bin/bash\ncd {folder}\n{content}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), **PLACE, **environment}
    done = subprocess.run(["bash", "-euc", script], env=environment, check=False, timeout=60)
    calls = {
        path.stem: [line.split("\0")[:-1] for line in path.read_text().splitlines()] for path in folder.glob("*.calls")
    }
    seen = folder / "environment"
    variables = seen.read_text().split("\0")[:-1] if seen.exists() else []
    return Ran(done.returncode, calls, dict(variable.split("=", 1) for variable in variables))


def check(ran: Ran, first: str, *, seconds_to_end: float, home_is_local: bool) -> None:
    """Both torchrun and `train` accept all of their options, save in time, and copy token files to a local disk.

    `seconds_to_end`: what the scheduler leaves after SIGTERM.
    """
    assert ran.code == 0
    [arguments] = ran.calls["torchrun"]
    assert 30 < int(ran.environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < seconds_to_end
    assert ran.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", ran.environment)
        assert home_is_local or Path(ran.environment["HOME"]) not in cache_folder().parents
    options = get_args_parser().parse_args(arguments)
    assert (options.nnodes, options.nproc_per_node, options.max_restarts) == ("2", "8", 3)
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", f"{first}:29500")
    assert options.rdzv_id
    assert (options.module, options.training_script) == (True, "trainer")
    assert options.training_script_args[0] == "train"
    _, bound, _ = app.parse_args(options.training_script_args, exit_on_error=False, print_error=False)
    settings = bound.arguments["settings"]
    assert settings.checkpoints.auto_resume
    assert settings.checkpoints.checkpoint_store == "s3://b/run"
    assert settings.total_batch_size % 16 == 0


def test_slurm(tmp_path: Path) -> None:
    script = (FOLDER / "slurm.sh").read_text()
    ran = run(script, tmp_path, **SLURM)
    [seconds] = re.findall("^#SBATCH --signal=TERM@([0-9]+)$", script, re.MULTILINE)
    check(ran, "gpu-7", seconds_to_end=int(seconds), home_is_local=False)
    assert script.index("#SBATCH --nodes=2") < script.index("set -euo")
    [step] = ran.calls["srun"]
    assert {"--kill-on-bad-exit=1", "--cpus-per-task=32"} <= set(step[: step.index("torchrun")])
    assert ran.calls["scontrol"] == [["show", "hostnames", "gpu-[7-8]"]]


@pytest.mark.parametrize(("restarts", "requeued"), [({}, True), ({"SLURM_RESTART_COUNT": "10"}, False)])
def test_slurm_queues_a_job_again_that_failed(tmp_path: Path, restarts: dict[str, str], requeued: bool) -> None:
    """--requeue does not: it is for preemption and lost nodes."""
    ran = run((FOLDER / "slurm.sh").read_text(), tmp_path, torchrun_code=3, **SLURM, **restarts)
    assert ran.code == 3
    assert (["requeue", "41"] in ran.calls["scontrol"]) == requeued


def test_jobset(tmp_path: Path) -> None:
    content = jobset()
    [job] = content["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {item["name"]: item["value"] for item in container["env"]} | PLACE
    name = content["metadata"]["name"]
    ran = run(container["args"][0], tmp_path, **environment)
    seconds = pod["terminationGracePeriodSeconds"]
    check(ran, f"{name}-{job['name']}-0-0.{name}", seconds_to_end=seconds, home_is_local=False)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    # A volume is writable by all; only a folder below it is used.
    assert Path(environment["OWNLM_CACHE_DIR"]).parent == Path(mounts["scratch"])
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 2


@pytest.mark.observe
def test_the_job_in_the_jobset_follows_kubernetes_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the extra observe")
    [job] = jobset()["spec"]["replicatedJobs"]
    resource = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, **job["template"]}
    validate.validate(resource, "1.31", strict=True)


def test_skypilot(tmp_path: Path) -> None:
    content = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert content.keys() <= KNOWN_TO_SKYPILOT
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": str(content["num_nodes"])}
    task = {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-1"}
    check(run(content["run"], tmp_path, **nodes, **task), "10.0.0.1", seconds_to_end=math.inf, home_is_local=True)


def test_skypilot_installs_what_the_run_needs(tmp_path: Path) -> None:
    """Into a Python that is chosen: the images' may be too old."""
    content = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    ran = run(content["setup"], tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [[*_, version, folder]] = ran.calls["uv"]
    assert f">={version}" == project["requires-python"]
    assert f'PATH="{folder}/bin:$PATH"'.replace(str(tmp_path), "$HOME") in content["run"]
    [[*_, installed]] = ran.calls["pip"]
    schemes = {content["envs"][name].partition("://")[0] for name in ("DATA", "STORE")}
    assert schemes == set(extras(installed))


def extras(text: str) -> list[str]:
    return [extra for group in re.findall(r"\.\[([\w,-]+)\]", text) for extra in group.split(",")]


def test_slurm_says_what_the_environment_needs() -> None:
    script = (FOLDER / "slurm.sh").read_text()
    assert set(re.findall(r"=(\w+)://", script)) == set(extras(script))


def scripts() -> dict[str, str]:
    """All shell scripts of the repository, also those in manifests."""
    sky = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    [job] = jobset()["spec"]["replicatedJobs"]
    files = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / ".ci" / "run", *FOLDER.glob("*.sh"))}
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    return files | {"skypilot setup": sky["setup"], "skypilot run": sky["run"], "jobset": container["args"][0]}


@pytest.mark.parametrize("name", scripts())
def test_shellcheck_finds_nothing(name: str) -> None:
    command = [Path(sys.executable).parent / "shellcheck", "--shell=bash", "-"]
    done = subprocess.run(command, input=scripts()[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
