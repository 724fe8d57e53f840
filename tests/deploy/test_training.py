"""The examples in deploy/training: each is run with programs that only note what they were called with."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.docs.pages import ROOT
from trainer.cli import app

FOLDER = ROOT / "deploy" / "training"
KNOWN_TO_SKYPILOT = {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
PLACE = {"DATA": "s3://b/tokens", "STORE": "s3://b/run", "GPUS": "8"}


def jobset() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    return content


def calls(script: str, folder: Path, **environment: str) -> list[str]:
    """The arguments that torchrun is called with."""
    programs = {
        "torchrun": f'for word; do printf "%s\\0" "$word" >> {folder}/calls; done',
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": "echo gpu-7; echo gpu-8",
    }
    for name, content in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{content}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), **PLACE, **environment}
    subprocess.run(["bash", "-euc", script], env=environment, check=True, timeout=60)
    return (folder / "calls").read_text().split("\0")[:-1]


def check(arguments: list[str], first: str) -> None:
    """Both torchrun and `train` accept all of their options."""
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
    slurm = {"SLURM_JOB_NODELIST": "gpu-[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "41"}
    check(calls(script, tmp_path, **slurm), "gpu-7")
    assert script.index("#SBATCH --nodes=2") < script.index("set -euo")


def test_jobset(tmp_path: Path) -> None:
    content = jobset()
    [job] = content["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {item["name"]: item["value"] for item in container["env"]} | PLACE
    name = content["metadata"]["name"]
    check(calls(container["args"][0], tmp_path, **environment), f"{name}-{job['name']}-0-0.{name}")
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 2


def test_the_job_in_the_jobset_follows_kubernetes_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    [job] = jobset()["spec"]["replicatedJobs"]
    resource = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, **job["template"]}
    validate.validate(resource, "1.31", strict=True)


def test_skypilot(tmp_path: Path) -> None:
    content = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert content.keys() <= KNOWN_TO_SKYPILOT
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": str(content["num_nodes"])}
    task = {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-1"}
    check(calls(content["run"], tmp_path, **nodes, **task), "10.0.0.1")
